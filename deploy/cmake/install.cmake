# What `cmake --install` lays out: libraries with their public headers, the protocol with its generated
# headers, and the files that find_package(gradwire) and pkg-config read.
include(CMakePackageConfigHelpers)

# Users first, as a linker reads them.
set(GRADWIRE_LIBRARIES
  gradwire_client gradwire_member_core gradwire_node_group gradwire_tls gradwire_proto gradwire_proto_generated gradwire_frames
  gradwire_hooks gradwire_base)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gradwire)

install(TARGETS ${GRADWIRE_LIBRARIES} EXPORT gradwireTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT sdk
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT sdk
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_BINARY_DIR}/proto/generated/gradwire DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT sdk FILES_MATCHING PATTERN "*.pb.h")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/proto/gradwire DESTINATION ${CMAKE_INSTALL_DATADIR}/gradwire/proto
  COMPONENT sdk FILES_MATCHING PATTERN "*.proto")

install(EXPORT gradwireTargets NAMESPACE gradwire:: DESTINATION ${package_dir} COMPONENT sdk)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/gradwireConfig.cmake.in
  ${PROJECT_BINARY_DIR}/gradwireConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gradwireConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gradwireConfig.cmake ${PROJECT_BINARY_DIR}/gradwireConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT sdk)

list(TRANSFORM GRADWIRE_LIBRARIES PREPEND "-l" OUTPUT_VARIABLE GRADWIRE_PC_LIBS)
list(JOIN GRADWIRE_PC_LIBS " " GRADWIRE_PC_LIBS)
# Relative to the file itself, so that an installed tree can be moved.
file(RELATIVE_PATH GRADWIRE_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/gradwire.pc.in ${PROJECT_BINARY_DIR}/gradwire.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/gradwire.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT sdk)
