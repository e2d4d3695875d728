# Compile options shared by every target of this project (never leaked to consumers).
add_library(motet_options INTERFACE)
target_compile_features(motet_options INTERFACE cxx_std_20)
target_compile_options(motet_options INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -fvisibility=hidden -fvisibility-inlines-hidden
                       -ffp-contract=off)  # contraction is written out where it is wanted: bits are a promise (L15)
# g++ 12 reports overlapping copies inside std::string's own concatenation (GCC bug 105651).
target_compile_options(motet_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(MOTET_WERROR)
  target_compile_options(motet_options INTERFACE -Werror)
endif()
if(MOTET_SANITIZE)
  target_compile_options(motet_options INTERFACE -fsanitize=${MOTET_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(MOTET_SANITIZE MATCHES undefined AND MOTET_SANITIZE MATCHES address)
    # AddressSanitizer sees what they are for, and they take much of the compile time.
    target_compile_options(motet_options INTERFACE -fno-sanitize=null,object-size)
  endif()
  target_link_options(motet_options INTERFACE -fsanitize=${MOTET_SANITIZE})
endif()
target_include_directories(motet_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(motet_options INTERFACE MOTET_VERSION="${PROJECT_VERSION}")
