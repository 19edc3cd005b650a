# Writes the header that names the commit being built: cmake -DROOT=<source> -DOUT=<file> -P DsmoeCommit.cmake
set(commit unknown)
find_program(GIT git)
if(GIT)
  # A source tree that merely lies inside another repository has no commit.
  execute_process(COMMAND ${GIT} -C ${ROOT} rev-parse --show-toplevel OUTPUT_VARIABLE top RESULT_VARIABLE code
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH ${ROOT} root)
  if(code EQUAL 0 AND top STREQUAL root)
    execute_process(COMMAND ${GIT} -C ${ROOT} describe --always --dirty --abbrev=12 --match v* OUTPUT_VARIABLE described
                    RESULT_VARIABLE code OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(code EQUAL 0)
      set(commit ${described})
    endif()
  endif()
endif()
file(WRITE ${OUT}.new "// Made by cmake/DsmoeCommit.cmake.\n#define DSMOE_COMMIT \"${commit}\"\n")
file(COPY_FILE ${OUT}.new ${OUT} ONLY_IF_DIFFERENT)
