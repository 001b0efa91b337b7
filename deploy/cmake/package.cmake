# The Debian packages that `make deb` writes with CPack: gradwired (daemon, tool, systemd unit), libgradwire-dev
# (what install.cmake lays out) and, in builds with it, python3-gradwire.
set(debian ${PROJECT_SOURCE_DIR}/deploy/debian)
set(systemd ${PROJECT_SOURCE_DIR}/deploy/systemd)
set(written ${PROJECT_BINARY_DIR}/package-files)
set(release 1)
set(packages gradwired libgradwire-dev)
if(GRADWIRE_BUILD_PYTHON)
  list(APPEND packages python3-gradwire)
endif()

# gradwire_compressed(SOURCE FOLDER): writes SOURCE, compressed as Debian wants it, as FOLDER/<name>.gz.
function(gradwire_compressed source folder)
  file(MAKE_DIRECTORY ${folder})
  get_filename_component(name ${source} NAME)
  execute_process(COMMAND gzip -9nc ${source} OUTPUT_FILE ${folder}/${name}.gz COMMAND_ERROR_IS_FATAL ANY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
endfunction()

# The unit and the configuration belong at fixed places, so only packages have them.
install(FILES ${systemd}/gradwired.service DESTINATION /lib/systemd/system COMPONENT daemon_package EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_SOURCE_DIR}/deploy/gradwired.yaml DESTINATION /etc/gradwire
  COMPONENT daemon_package EXCLUDE_FROM_ALL)
install(FILES ${debian}/gradwired.logrotate DESTINATION /etc/logrotate.d RENAME gradwired
  COMPONENT daemon_package EXCLUDE_FROM_ALL)
install(FILES ${systemd}/tls.conf ${systemd}/tokens ${systemd}/users.conf DESTINATION /usr/share/doc/gradwired/examples
  COMPONENT daemon_package EXCLUDE_FROM_ALL)
file(GLOB error_pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/deploy/errors/*.md)
install(FILES ${error_pages} DESTINATION /usr/share/doc/gradwired/errors COMPONENT daemon_package EXCLUDE_FROM_ALL)
install(FILES ${debian}/gradwired.bash DESTINATION /usr/share/bash-completion/completions RENAME gradwired
  COMPONENT daemon_package EXCLUDE_FROM_ALL)
# gradwirectl knows its own commands.
foreach(shell IN ITEMS bash zsh fish)
  set(completion ${written}/completion/gradwirectl.${shell})
  add_custom_command(OUTPUT ${completion} DEPENDS gradwirectl VERBATIM
    COMMAND ${CMAKE_COMMAND} -E make_directory ${written}/completion
    COMMAND sh -c "exec \"$1\" completion ${shell} >\"$2\"" sh $<TARGET_FILE:gradwirectl> ${completion})
  list(APPEND completions ${completion})
endforeach()
add_custom_target(gradwirectl_completion ALL DEPENDS ${completions})
install(FILES ${written}/completion/gradwirectl.bash DESTINATION /usr/share/bash-completion/completions
  RENAME gradwirectl COMPONENT daemon_package EXCLUDE_FROM_ALL)
install(FILES ${written}/completion/gradwirectl.zsh DESTINATION /usr/share/zsh/vendor-completions
  RENAME _gradwirectl COMPONENT daemon_package EXCLUDE_FROM_ALL)
install(FILES ${written}/completion/gradwirectl.fish DESTINATION /usr/share/fish/vendor_completions.d
  COMPONENT daemon_package EXCLUDE_FROM_ALL)
foreach(page IN ITEMS gradwired.8 gradwirectl.1)
  string(REGEX REPLACE ".*\\." "" section ${page})
  gradwire_compressed(${PROJECT_SOURCE_DIR}/deploy/man/${page} ${written}/man)
  install(FILES ${written}/man/${page}.gz DESTINATION /usr/share/man/man${section}
    COMPONENT daemon_package EXCLUDE_FROM_ALL)
endforeach()
if(GRADWIRE_BUILD_PYTHON)
  set(modules /usr/lib/python3/dist-packages)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/client/python/gradwire DESTINATION ${modules}
    COMPONENT python_package EXCLUDE_FROM_ALL PATTERN __pycache__ EXCLUDE)
  install(TARGETS gradwire_python LIBRARY DESTINATION ${modules}/gradwire COMPONENT python_package EXCLUDE_FROM_ALL)
endif()

foreach(package IN LISTS packages)
  file(CONFIGURE OUTPUT ${written}/${package}/changelog.Debian
    CONTENT "@package@ (@PROJECT_VERSION@-@release@) unstable; urgency=medium\n\n  * See CHANGELOG.md in the sources.\n\n -- Gradwire <gradwire@localhost>  Thu, 01 Jan 2026 00:00:00 +0000\n")
  gradwire_compressed(${written}/${package}/changelog.Debian ${written}/${package})
  if(package STREQUAL gradwired)
    set(component daemon_package)
  elseif(package STREQUAL libgradwire-dev)
    set(component sdk_package)
  else()
    set(component python_package)
  endif()
  install(FILES ${debian}/copyright ${written}/${package}/changelog.Debian.gz
    DESTINATION /usr/share/doc/${package} COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_NAME gradwire)
set(CPACK_PACKAGE_CONTACT "Gradwire <gradwire@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL daemon daemon_package sdk sdk_package)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${release})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# A package is a group of components; CPack knows its settings by the group's name.
set(CPACK_DEBIAN_DAEMON_PACKAGE_NAME gradwired)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SECTION net)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA ${debian}/conffiles ${debian}/postinst ${debian}/prerm ${debian}/postrm)
set(CPACK_COMPONENT_DAEMON_DESCRIPTION "gradient-aggregation daemon for distributed training
 gradwired sums the gradients of training processes on several machines and
 sends the same bytes back to each of them. gradwirectl queries its status.")

set(CPACK_DEBIAN_SDK_PACKAGE_NAME libgradwire-dev)
set(CPACK_DEBIAN_SDK_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_SDK_PACKAGE_DEPENDS
  # gRPC's CMake files ask for the compilers too.
  "libgrpc++-dev, libprotobuf-dev, libabsl-dev, libhwy-dev, libxxhash-dev, libssl-dev"
  "protobuf-compiler, protobuf-compiler-grpc, pkg-config")
list(JOIN CPACK_DEBIAN_SDK_PACKAGE_DEPENDS ", " CPACK_DEBIAN_SDK_PACKAGE_DEPENDS)
set(CPACK_COMPONENT_SDK_DESCRIPTION "C++ client of the Gradwire gradient-aggregation daemon
 Headers, static libraries, CMake and pkg-config files, and the protocol.")

set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-gradwire)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS "gradwired, python3-torch")
set(CPACK_COMPONENT_PYTHON_DESCRIPTION "Gradwire's hooks for PyTorch's DistributedDataParallel
 Gradients travel through a gradwired instead of a process group.")
if(GRADWIRE_BUILD_PYTHON)
  list(APPEND CPACK_COMPONENTS_ALL python_package)
  # The module is made for one minor version of Python.
  get_directory_property(minor DIRECTORY client/python DEFINITION Python_VERSION_MINOR)
  math(EXPR next "${minor} + 1")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.${minor}), python3 (<< 3.${next})")
endif()

include(CPack)
foreach(package IN ITEMS daemon sdk python)
  cpack_add_component_group(${package})
endforeach()
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(REPLACE "_package" "" package ${component})
  cpack_add_component(${component} GROUP ${package})
endforeach()
