#!/usr/bin/env bash
# Measures on a GPU. Each measurement is a process of its own with a time limit, and writes its JSON
# when it is done; one that fails costs none of the others. A slice takes less than ten minutes, and
# the first ones matter most.
#
#   benchmarks/gpu/run.sh                  # all slices
#   benchmarks/gpu/run.sh 1 3              # some
#   benchmarks/gpu/run.sh --dry-run        # starts everything without measuring it, on any machine
#
# PYTHON is one that has jax for CUDA (python3); where it lacks axcore, that is unpacked from wheels/,
# which pack.sh made. OUT gets NAME/*.json, NAME.log and summary.txt, by default
# in benchmarks/results/gpu.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=$(realpath -m "${OUT:-benchmarks/results/gpu}")
dry=()
slices=()
for argument in "$@"; do
    case $argument in
        --dry-run) dry=(--dry-run) ;;
        [1-3]) slices+=("$argument") ;;
        *) echo "unknown: $argument; give slices, 1 to 3, or --dry-run" >&2; exit 2 ;;
    esac
done
[ ${#slices[@]} -gt 0 ] || slices=(1 2 3)
mkdir -p "$out"
: > "$out/summary.txt"
failed=0

if ! "$python" -c 'import axcore, axl_gpu' 2> /dev/null; then
    "$python" -m pip --quiet install --no-index --no-deps --upgrade --target "$out/packages" benchmarks/gpu/wheels/*.whl \
        || { echo "axcore cannot be installed; run benchmarks/gpu/pack.sh first" >&2; exit 1; }
    export PYTHONPATH=$out/packages
fi
if [ ${#dry[@]} -gt 0 ]; then
    export JAX_PLATFORMS=cpu
else
    export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$out/compiled}
fi

# measure SLICE SECONDS NAME COMMAND...: where the slice is asked for
measure() {
    local slice=$1 seconds=$2 name=$3 began=$SECONDS status=0
    shift 3
    [[ " ${slices[*]} " == *" $slice "* ]] || return 0
    BENCHMARK_RESULTS="$out/$name" timeout --kill-after=10 "$seconds" "$python" "$@" \
        > "$out/$name.log" 2>&1 || status=$?
    local word=done
    [ "$status" = 0 ] || { failed=1; word="exit $status"; [ "$status" != 124 ] || word="over $seconds s"; }
    echo "slice $slice  $name  $word  $((SECONDS - began)) s  $(tail -n 1 "$out/$name.log" | cut -c 1-160)" \
        | tee -a "$out/summary.txt"
}

tests=(-m pytest -q --noconftest -p no:cacheprovider -c benchmarks/gpu/pytest.ini)
[ ${#dry[@]} -eq 0 ] || tests+=(--collect-only)

measure 1 240 correctness "${tests[@]}" benchmarks/gpu/kernel_correctness.py
measure 1 330 attention benchmarks/gpu_kernels.py --only attention "${dry[@]}"
measure 2 290 train_step_16_layers benchmarks/gpu_train_step.py --layers 16 "${dry[@]}"
measure 2 290 train_step_12_layers_cudnn benchmarks/gpu_train_step.py --layers 12 --kernels attention=cudnn_attention "${dry[@]}"
for part in grouped loss float8 norm; do
    measure 3 140 "$part" benchmarks/gpu_products.py "$part" "${dry[@]}"
done
exit $failed
