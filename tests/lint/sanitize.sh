#!/usr/bin/env bash
# Run tests on a separate build of the extensions with sanitizers: the given tests, or the unit tests and, under ASan, the
# tests of wrong arguments and mutated frames.
#   tests/lint/sanitize.sh address,undefined|thread PYTHON [TEST ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
kind=$1
python=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
base=$PWD/build/sanitize-${kind%%,*}
runtime() { gcc -print-file-name="$1"; }
case $kind in
address*) libraries=(libasan.so libubsan.so) ;;
thread) libraries=(libtsan.so) ;;
*)
  echo "sanitize.sh: address,undefined or thread, not $kind" >&2
  exit 2
  ;;
esac
preload=""
for library in "${libraries[@]}"; do
  file=$(runtime "$library")
  if [ ! -e "$file" ]; then
    echo "make sanitize needs $library of gcc; on Debian: apt-get install gcc" >&2
    exit 1
  fi
  preload="$preload $file"
done

KBROKER_SANITIZE=$kind "$python" setup.py -q build --build-base "$base" --build-lib "$base/lib"

# CPython frees little at exit, so leaks of the interpreter would hide those of the extensions; the unit tests count allocations.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS="halt_on_error=1:exitcode=66:second_deadlock_stack=1:suppressions=$PWD/tests/lint/tsan_suppressions.txt"
export PYTHONMALLOC=malloc PYTHONPATH="$base/lib:$PWD" KBROKER_SANITIZED=$kind HYPOTHESIS_PROFILE=sanitize
echo "tests under $kind"
run=()
# a kernel with more random address bits than the runtime supports needs a fixed layout
if [ "$kind" = thread ] && [ "$(cat /proc/sys/vm/mmap_rnd_bits 2> /dev/null || echo 28)" -gt 28 ]; then run=(setarch -R); fi
suites=("${@:3}")
if [ ${#suites[@]} = 0 ]; then
  suites=(tests/unit)
  # Skip the forks while other threads allocate: gcc's ASan does not hold its allocator's locks over a fork, so the child may
  # wait for them forever.
  if [ "$kind" != thread ]; then
    suites+=(tests/property/test_bad_input*.py tests/property/test_mutated_frames.py tests/integration/test_start_size.py)
  fi
fi
# a sanitizer writes its report past Python, and --capture=sys does not capture it
LD_PRELOAD="$preload" "${run[@]}" "$python" -m pytest "${suites[@]}" -q --capture=sys --timeout=600 -p no:cacheprovider --benchmark-disable \
  --deselect tests/unit/test_design_rules.py --deselect tests/integration/test_start_size.py::test_a_forked_child_runs_and_ends \
  --deselect tests/unit/log/test_log_recovery.py::test_speed_of_recovery \
  --deselect tests/unit/cli/test_command_line.py::test_bash_completes \
  --deselect "tests/unit/cli/test_command_line.py::test_completion_script[bash]" # bash does not run with TSan's library
