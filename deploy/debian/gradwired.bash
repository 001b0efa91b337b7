# Completes gradwired in bash. Options and commands come from --help, so they are those of the installed version.
_gradwired_options() { sed -nE 's/^  (-.,)?(--[a-z-]+).*/\2/p'; }
_gradwired_commands() { sed '1,/^Subcommands:/d' | awk '/^  / {print $1}'; }
_gradwired() {
  local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} commands=() help options names i
  case ${COMP_WORDS[COMP_CWORD - 1]} in
    --tls-* | --tokens | --audit-log | --cuda-library | --record | --config)
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return
      ;;
  esac
  help=$("$program" --help 2>/dev/null) || return
  options=$(_gradwired_options <<<"$help")
  names=$(_gradwired_commands <<<"$help")
  for ((i = 1; i < COMP_CWORD; i++)); do
    grep -qxF -- "${COMP_WORDS[i]}" <<<"$names" || continue
    commands+=("${COMP_WORDS[i]}")
    help=$("$program" "${commands[@]}" --help 2>/dev/null) || return
    options+=$'\n'$(_gradwired_options <<<"$help")
    names=$(_gradwired_commands <<<"$help")
  done
  mapfile -t COMPREPLY < <(compgen -W "$options $names" -- "$word")
}
complete -F _gradwired gradwired
