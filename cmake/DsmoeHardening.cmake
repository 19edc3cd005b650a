# What makes a fault harder to use. Options of folders, not of targets: who links the installed libraries takes none of it.
include(CheckPIESupported)
check_pie_supported(LANGUAGES CXX)

add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fcf-protection>)
endif()
# Checked copies need an optimiser; sanitizers check the same calls themselves. Undefined first: some compilers come with a level.
if(NOT DSMOE_SANITIZE)
  add_compile_options("$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:SHELL:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2>")
endif()
# Indices into spans, vectors and strings of the standard library are checked, each by a compare.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-D_GLIBCXX_ASSERTIONS>)
add_link_options(LINKER:-z,relro,-z,now)
