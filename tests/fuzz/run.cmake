# Runs one fuzz target: new inputs go to SCRATCH, the committed corpus stays as it is.
file(MAKE_DIRECTORY ${SCRATCH})
execute_process(COMMAND ${PROGRAM} -max_total_time=${SECONDS} -timeout=10 -rss_limit_mb=2048 -max_len=16384 -dict=${DICTIONARY} -artifact_prefix=${SCRATCH}/find- ${SCRATCH} ${CORPUS}
                RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} found an input that breaks it (${result}); it lies in ${SCRATCH}/find-*")
endif()
