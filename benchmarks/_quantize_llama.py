"""Writes a GGUF file in a quantized type, by llama.cpp itself.

python benchmarks/_quantize_llama.py SOURCE.gguf TARGET.gguf Q8_0|Q4_0|Q4_K_M
"""

import sys

import llama_cpp

TYPES = {
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
}


def main(source: str, target: str, kind: str) -> None:
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = TYPES[kind]
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), params):
        sys.exit(f"{source} could not be quantized to {kind}")


if __name__ == "__main__":
    main(*sys.argv[1:])
