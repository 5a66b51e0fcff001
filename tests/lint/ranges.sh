#!/usr/bin/env bash
# Run tests with the oldest, or the newest, version that each range in pyproject.toml allows.
# Usage: ranges.sh oldest|newest PYTHON TEST...
# Sources, build and environment are copies in build/ranges, so that the locked environment is unchanged.
set -euo pipefail
end=$1 python=$2
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
case $end in
  oldest) resolution=lowest-direct ;;
  newest) resolution=highest ;;
  *) echo "expected oldest or newest, got $end" >&2 && exit 2 ;;
esac
place=$PWD/build/ranges
copy=$place/$end
mkdir -p "$copy"

if [ ! -x "$place/tools/bin/uv" ]; then
  "$python" -m venv "$place/tools"
  "$place/tools/bin/pip" install -q -c tests/lint/requirements.txt uv
fi
find "$copy" -mindepth 1 -maxdepth 1 ! -name .venv ! -name build -exec rm -rf {} +
rm -f "$copy/.venv/.built" # the compiled modules were beside the sources; the build puts its copies there again
git ls-files -z --cached --others --exclude-standard | tar --create --null --ignore-failed-read --files-from=- |
  tar --extract --directory="$copy"

cd "$copy"
sed -n '/^requires = /p' pyproject.toml | grep -o '"[^"]*"' | tr -d '"' > build.in # setuptools, Cython
"$place/tools/bin/uv" pip compile -q --python "$python" --resolution "$resolution" --all-extras --no-header --no-annotate \
  pyproject.toml build.in -o versions.new
cmp -s versions.new build/versions.txt || { mkdir -p build && mv versions.new build/versions.txt; }
make --no-print-directory PYTHON="$python" LOCK=build/versions.txt .venv/.built .venv/.locked
export KBROKER_RANGES=$end # docs/compatibility.md has the versions of the lock alone
.venv/bin/python -m pytest -m "not soak" --benchmark-disable "$@"
