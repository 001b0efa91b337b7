# cmake -P skip.cmake REASON: a test that is skipped, for this reason.
message(NOTICE "SKIPPED: ${CMAKE_ARGV3}")
