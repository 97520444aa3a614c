#!/usr/bin/env bash
# One call on a GPU machine without network: `OUT=DIRECTORY bash benchmarks/gpu/call.sh STAGE ...`, in the repository.
#
# Unpacks the payload (PAYLOAD, or .gpu/payload.tar.xz; .gpu/tables.tar.xz for the stage `tables` and .gpu/clips.tar.xz for `clips`,
# each in a call of its own, `clips` also with `tests`; and .gpu/spare.tar.xz if it is there) where that is not done yet, and runs
# the stages in turn. Results lie in $OUT, a file for each stage, up to date after every measurement. What later stages build on is
# taken from .gpu/results and from the machine.
# Set COMMIT where git cannot say it, LIMIT_S for the whole call, GPU_ARGS for further arguments of benchmarks.gpu.
set -u
work=${WORK:-/tmp/datapipe-gpu}
out=${OUT:-$work/out}
python=${PYTHON:-python3}
kind=payload imports=torch,crc32c,converters,datapipe,nvidia.dali.fn,simplejpeg
[ "$*" = tables ] && kind=tables imports=torch,crc32c,converters,datapipe,pylibcudf
case "$*" in clips | "clips tests") kind=clips imports=torch,crc32c,converters,datapipe,av,PyNvVideoCodec ;; esac
payload=${PAYLOAD:-.gpu/$kind.tar.xz}
limit_s=${LIMIT_S:-585}

mkdir -p "$work/results" "$out"
if [ -f "$payload" ] && [ ! -d "$work/$kind/site" ]; then
    rm -rf "$work/unpacking"
    "$python" -W ignore -m tarfile -e "$payload" "$work/unpacking" && mv "$work/unpacking" "$work/$kind" || exit 2
fi
if [ -f .gpu/spare.tar.xz ] && [ ! -d "$work/spare/nvimgcodec-0.8" ]; then
    rm -rf "$work/unpacking"
    "$python" -W ignore -m tarfile -e .gpu/spare.tar.xz "$work/unpacking" && mv "$work/unpacking" "$work/spare" || exit 2
fi
arguments=(--out "$out" --commit "${COMMIT:-}" --quiet)
if [ -d "$work/$kind/site" ]; then
    export PYTHONPATH="$work/$kind/site${PYTHONPATH:+:$PYTHONPATH}"
    # The carried nvJPEG, and not an older one of the machine's CUDA toolkit.
    export LD_LIBRARY_PATH="$work/$kind/site/nvidia/cu13/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    [ -d "$work/spare/nvimgcodec-0.8" ] && arguments+=(--spare "$work/spare/nvimgcodec-0.8")
fi
export PYTHONUNBUFFERED=1
# A payload for another Python is better found out now than by every job of every stage. torch comes first, as in a script: the
# libraries of CUDA that it loads are those that DALI and cuDF then get.
"$python" -c "import $imports" 2>&1 | tee "$out/log.txt"
[ "${PIPESTATUS[0]}" -eq 0 ] || exit 2
for earlier in {.gpu,"$work"}/results/gpu-{correct,sweep}.json; do
    [ "$kind" = payload ] && [ -f "$earlier" ] && cp "$earlier" "$out/"
done

status=0
for stage in "$@"; do
    timeout -k 5 $((limit_s > SECONDS ? limit_s - SECONDS : 1)) \
        "$python" -m benchmarks.gpu "$stage" "${arguments[@]}" ${GPU_ARGS:-} 2>&1 | tee -a "$out/log.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    cp "$out"/gpu-*.json "$work/results/"
done
"$python" -m benchmarks.gpu summary --out "$out"
exit $status
