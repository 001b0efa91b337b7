"""The checks of `make test-deploy`: each returns a short result, or says what is wrong."""
import subprocess
import time


class Failed(Exception):
    """The artefact is not as it should be; the text says how."""


def run(*command, input=None, timeout=300, env=None, cwd=None):
    """Standard output of a command. Failed: its last lines, if it did not exit with 0."""
    done = subprocess.run([str(part) for part in command], input=input, capture_output=True, text=True,
                          timeout=timeout, env=env, cwd=cwd, check=False)
    if done.returncode != 0:
        last = (done.stdout + done.stderr).strip().splitlines()[-15:]
        raise Failed(f"{' '.join(map(str, command))}: exit {done.returncode}\n  " + "\n  ".join(last))
    return done.stdout


def need(condition, text):
    """Failed with `text` unless the condition is true."""
    if not condition:
        raise Failed(text)


def run_checks(checks):
    """Runs (artefact, check, function) rows in order and prints a line for each; whether all passed."""
    failures = 0
    print(f"{'artefact':28} {'check':58} result", flush=True)
    for artefact, what, function in checks:
        begin = time.monotonic()
        try:
            result = function() or "ok"
        except Failed as error:
            failures += 1
            result = f"FAILED: {error}"
        except Exception as error:  # an artefact without what a check reads; the other checks go on
            failures += 1
            result = f"FAILED: {error!r}"
        print(f"{artefact:28} {what:58} {result} ({time.monotonic() - begin:.0f} s)", flush=True)
    print(f"{len(checks) - failures} passed, {failures} failed", flush=True)
    return failures == 0
