# cmake --install: the program, one static library per folder with its headers, and find_package(dsmoe).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(libraries GLOBAL PROPERTY DSMOE_LIBRARIES)
install(TARGETS ${libraries} EXPORT dsmoeTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS dsmoe RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
set(made ${CMAKE_BINARY_DIR}/apps/dsmoe)
install(FILES ${made}/dsmoe.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${made}/dsmoe.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME dsmoe)
install(FILES ${made}/_dsmoe DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${made}/dsmoe.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/src/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dsmoe
        FILES_MATCHING PATTERN "*.h" PATTERN "*test*" EXCLUDE
        # For tests only.
        PATTERN "scratch_folder.h" EXCLUDE PATTERN "failing_disk.h" EXCLUDE)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dsmoe)
install(EXPORT dsmoeTargets NAMESPACE dsmoe:: DESTINATION ${package_dir})

# A folder whose library needs a package beyond those of cmake/dsmoeConfig.cmake.in says how to find it:
#   set_property(GLOBAL APPEND PROPERTY DSMOE_CONFIG_LINES "find_dependency(X)")
get_property(config_lines GLOBAL PROPERTY DSMOE_CONFIG_LINES)
list(REMOVE_DUPLICATES config_lines)
list(JOIN config_lines "\n" DSMOE_CONFIG_LINES)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/dsmoeConfig.cmake.in ${CMAKE_BINARY_DIR}/dsmoeConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/dsmoeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/dsmoeConfig.cmake ${CMAKE_BINARY_DIR}/dsmoeConfigVersion.cmake
        DESTINATION ${package_dir})
