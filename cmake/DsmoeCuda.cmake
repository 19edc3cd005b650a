# CUDA as a language, and the flags every CUDA target takes. Included at the top so that all folders see it.
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# CMake 3.25 does not know the dialects of CUDA 13.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")

# wgmma and setmaxnreg exist for 9.0a only. No contraction the code does not ask for; denormals flushed (docs/numerics.md).
# fmt takes nvcc for a compiler without constexpr unless told.
function(dsmoe_cuda_target target)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF CUDA_STANDARD 20)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_90a,code=sm_90a>
    $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false> $<$<COMPILE_LANGUAGE:CUDA>:-ftz=true>)
  target_compile_definitions(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
endfunction()
