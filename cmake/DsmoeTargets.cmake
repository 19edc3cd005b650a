# The two functions every folder of src/ uses: one library per folder, one test binary per folder.

# dsmoe_library(<folder> SOURCES <files> [DEPS <targets>]): static library dsmoe_<folder>, alias dsmoe::<folder>.
function(dsmoe_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(dsmoe_${folder} STATIC ${ARG_SOURCES})
  add_library(dsmoe::${folder} ALIAS dsmoe_${folder})
  set_target_properties(dsmoe_${folder} PROPERTIES EXPORT_NAME ${folder})
  target_include_directories(dsmoe_${folder} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>
                             $<INSTALL_INTERFACE:include> $<INSTALL_INTERFACE:include/dsmoe>)
  target_link_libraries(dsmoe_${folder} PUBLIC ${ARG_DEPS})
  set_property(GLOBAL APPEND PROPERTY DSMOE_LIBRARIES dsmoe_${folder})
endfunction()

# dsmoe_tests(<name> LABEL <label> SOURCES <files> [DEPS <targets>]): GoogleTest binary, one ctest entry per case.
function(dsmoe_tests name)
  if(NOT DSMOE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "LABEL" "SOURCES;DEPS" ${ARGN})
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE ${ARG_DEPS} GTest::gtest_main)
  # Tests of their own compute little: compiled in three quarters (release) and half (debug) of the time. What they test keeps all checks.
  target_compile_options(${name}_test PRIVATE $<$<CONFIG:Release>:-O1> $<$<CONFIG:Debug>:-O0 -fno-sanitize=undefined>)
  target_compile_definitions(${name}_test PRIVATE DSMOE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  # `ninja tests_unit` builds what carries that label; gpu_targets is what a GPU can say something about.
  if(NOT TARGET tests_${ARG_LABEL})
    add_custom_target(tests_${ARG_LABEL})
  endif()
  add_dependencies(tests_${ARG_LABEL} ${name}_test)
  if(DSMOE_CUDA AND "dsmoe::kernels_cuda" IN_LIST ARG_DEPS)
    add_dependencies(gpu_targets ${name}_test)
  endif()
  include(GoogleTest)
  # Values that gtest cannot print would put their bytes, addresses among them, into the tests' names.
  gtest_discover_tests(${name}_test NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT 300)
endfunction()
