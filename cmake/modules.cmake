# SPDX-License-Identifier: Apache-2.0
# crossmesh_module(NAME FLOOR n USES module... LIBS library...)
#
# One module is one folder under crossmesh/: its *.cc become the static library
# crossmesh_NAME, its *_test.cc become the test binary NAME_test.

find_package(GTest QUIET)
find_package(Threads REQUIRED)

add_library(crossmesh_warnings INTERFACE)
target_compile_options(crossmesh_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow)

function(crossmesh_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE
    CROSSMESH_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
    CROSSMESH_SANITIZER="${CROSSMESH_SANITIZER}")
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} crossmesh_warnings GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 ENVIRONMENT
    "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:halt_on_error=1")
endfunction()

function(crossmesh_module name)
  cmake_parse_arguments(ARG "" "FLOOR" "USES;LIBS" ${ARGN})
  set(folder ${PROJECT_SOURCE_DIR}/crossmesh/${name})
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cc ${folder}/detail/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(TRANSFORM ARG_USES PREPEND crossmesh_ OUTPUT_VARIABLE uses)
  if(sources)
    add_library(crossmesh_${name} STATIC ${sources})
    target_link_libraries(crossmesh_${name} PUBLIC ${uses} ${ARG_LIBS} Threads::Threads
                          PRIVATE crossmesh_warnings)
    target_include_directories(crossmesh_${name} PUBLIC ${PROJECT_SOURCE_DIR})
    target_compile_features(crossmesh_${name} PUBLIC cxx_std_20)
  else()
    add_library(crossmesh_${name} INTERFACE)
    target_link_libraries(crossmesh_${name} INTERFACE ${uses} ${ARG_LIBS} Threads::Threads)
    target_include_directories(crossmesh_${name} INTERFACE ${PROJECT_SOURCE_DIR})
    target_compile_features(crossmesh_${name} INTERFACE cxx_std_20)
  endif()
  if(tests AND CROSSMESH_TESTS)
    crossmesh_test(${name}_test SOURCES ${tests} LIBS crossmesh_${name})
  endif()
endfunction()
