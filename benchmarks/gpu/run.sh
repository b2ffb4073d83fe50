#!/usr/bin/env bash
# Measures on a GPU. Each measurement is a process of its own with a time limit, and writes its JSON
# as it goes; one that fails costs none of the others. A slice takes less than ten minutes: what it
# has no time left for is said, and can be asked for by name. The first ones matter most.
#
#   benchmarks/gpu/run.sh                  # all slices
#   benchmarks/gpu/run.sh 1 3              # some
#   benchmarks/gpu/run.sh axcore_none      # measurements by their names
#   benchmarks/gpu/run.sh --dry-run        # starts everything without measuring it, on any machine
#
# PYTHON is one that has jax for CUDA (python3); where it lacks axcore, that is unpacked from wheels/,
# which pack.sh made (or WHEELS). OUT gets gpu_CHIP_*.json, NAME.log, summary.txt and what was compiled and tuned, in
# caches/; it is benchmarks/results/gpu unless it is given. SLICE_SECONDS is 580.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=$(realpath -m "${OUT:-benchmarks/results/gpu}")
slice_seconds=${SLICE_SECONDS:-580}
dry=()
wanted=()
for argument in "$@"; do
    case $argument in
        --dry-run) dry=(--dry-run) ;;
        -*) echo "unknown: $argument; give slices, 1 to 3, names of measurements, or --dry-run" >&2; exit 2 ;;
        *) wanted+=("$argument") ;;
    esac
done
[ ${#wanted[@]} -gt 0 ] || wanted=(1 2 3)
mkdir -p "$out/caches"
: > "$out/summary.txt"

if ! "$python" -c 'import axcore, axl_gpu' > /dev/null 2>&1; then
    "$python" -m pip --quiet install --no-index --no-deps --upgrade --target "$out/packages" "${WHEELS:-benchmarks/gpu/wheels}"/*.whl \
        || { echo "axcore cannot be installed; run benchmarks/gpu/pack.sh first" >&2; exit 1; }
    export PYTHONPATH=$out/packages
fi
export BENCHMARK_RESULTS=$out
export JAX_COMPILATION_CACHE_DIR=$out/caches/jax  # what XLA tuned is kept there as well
export TORCHINDUCTOR_CACHE_DIR=$out/caches/inductor TRITON_CACHE_DIR=$out/caches/triton
[ ${#dry[@]} -eq 0 ] || export JAX_PLATFORMS=cpu

slice=0
begin() { slice=$1; deadline=$((SECONDS + slice_seconds)); }

# measure SECONDS NAME COMMAND...: where the slice or the name is asked for
measure() {
    local seconds=$1 name=$2 began=$SECONDS status=0 left=$((deadline - SECONDS)) word=done
    shift 2
    [[ " ${wanted[*]} " == *" $slice "* || " ${wanted[*]} " == *" $name "* ]] || return 0
    if [ "$left" -lt 20 ]; then
        word="no time left" ; : > "$out/$name.log"
    else
        [ "$seconds" -le "$left" ] || seconds=$left
        timeout --kill-after=10 "$seconds" "$python" "$@" "${dry[@]}" > "$out/$name.log" 2>&1 || status=$?
        [ "$status" = 0 ] || word="exit $status"
        [ "$status" != 124 ] || word="over $seconds s"
    fi
    echo "slice $slice  $name  $word  $((SECONDS - began)) s  $(tail -n 1 "$out/$name.log" | cut -c 1-160)" \
        | tee -a "$out/summary.txt"
}

begin 1
# Nothing is timed here, so all kernels are tried at once, each with a little of the memory.
for kernel in attention/{gpu_flash_attention,gpu_packed_flash_attention,cudnn_attention,cudnn_packed_attention} \
    attention_backward/gpu_flash_attention grouped_matmul/{gpu_grouped_matmul,mosaic_grouped_matmul} \
    decode_attention/gpu_decode_attention cross_entropy/gpu_cross_entropy rms_norm/gpu_rms_norm \
    quantized_dot/gpu_float8_matmul; do
    XLA_PYTHON_CLIENT_PREALLOCATE=false measure 300 "correctness_${kernel/\//.}" benchmarks/gpu_correctness.py "$kernel" &
    [ ${#dry[@]} -eq 0 ] || wait
done
wait
for subject in ceilings attention_causal attention_packed attention_ragged; do
    measure 110 $subject benchmarks/gpu_kernels.py $subject
done

begin 2
for case in axcore_minimal torch_cudnn axcore_fp8_delayed torch_flash axcore_own_attention axcore_none axcore_fp8_current torch_cudnn_repeated; do
    measure 150 $case benchmarks/gpu_train_step.py $case
done

begin 3
for subject in decode loss float8 norm; do
    measure 60 $subject benchmarks/gpu_kernels.py $subject
done
measure 200 grouped benchmarks/gpu_kernels.py grouped  # XLA takes minutes to compile its ragged_dot
measure 240 serving benchmarks/serving.py --device cuda --rounds 2 --models 125M --without-load --torch-python "$python"
for kernel in attention/gpu_flash_attention grouped_matmul/gpu_grouped_matmul attention_backward/gpu_flash_attention \
    cross_entropy/gpu_cross_entropy; do
    measure 90 "block_sizes_${kernel/\//.}" benchmarks/gpu_block_sizes.py "$kernel"
done
for case in axcore_unrolled axcore_save_gate axcore_own_loss axcore_fp8_none torch_cudnn_tuned; do
    measure 240 $case benchmarks/gpu_train_step.py $case
done
[ "$(grep -c '  done  ' "$out/summary.txt")" = "$(wc -l < "$out/summary.txt")" ]
