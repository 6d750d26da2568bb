# Functions of the other scripts: a virtual environment below the checkout, a C compiler, and Java for Spark.
# This file is sourced, not run. Its messages are written to standard error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# The tests and Spark start many processes. Without cached bytecode, each of them compiles the library's source again.
unset PYTHONDONTWRITEBYTECODE
say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

# install PACKAGE...: install Debian packages. Returns 1 without apt-get or the rights of root.
install() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  say "installing $* with apt-get"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@"; } >/dev/null 2>&1
}

first_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

find_python() { # print the first interpreter of 3.10 or newer that can create a virtual environment
  first_python && return
  install python3 python3-venv && first_python && return
  say "needs Python 3.10 or newer with its venv module (Debian: apt-get install python3-venv); none was found"
  exit 1
}

# ensure_venv DIRECTORY REQUIREMENT...: create a virtual environment and set VENV_PYTHON. It is created again when
# pyproject.toml, setup.py, the kernels or the requirements change.
ensure_venv() {
  local directory=$1 stamp wanted python
  shift
  stamp="$directory/.installed"
  wanted="$(cksum pyproject.toml setup.py lancetable/file/kernels/*.pyx lancetable/file/kernels/loops/*.pxi lancetable/rowids/*.pyx 2>/dev/null || true) $*"
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    python=$(find_python)
    say "creating the virtual environment $directory with $("$python" --version)"
    "$python" -m venv --upgrade-deps "$directory" >/dev/null
    say "installing $*"
    "$directory/bin/pip" install --quiet --quiet --disable-pip-version-check --editable "$@" || return
    printf '%s' "$wanted" >"$stamp"
  fi
  VENV_PYTHON="$PWD/$directory/bin/python"
}

# ensure_compiler: find or install a C compiler for the kernels, which are optional. Returns 1 if there is none.
ensure_compiler() {
  command -v cc >/dev/null && "$(find_python)" - <<'PY' && return 0
import pathlib, sys, sysconfig
sys.exit(not (pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h").exists())
PY
  install gcc libc6-dev python3-dev
}

# make_sanitized_copy [RUNTIME]: create a temporary copy of the checkout whose compiled modules use AddressSanitizer and
# UndefinedBehaviorSanitizer. Sets COPY, its directory, and SANITIZED, the environment variables for its processes. Uses
# VENV_PYTHON, which needs Cython. The modules are built in build/sanitized, so that no other run loads them. RUNTIME is
# a library with both runtimes; by default those of gcc. Reports are files in COPY/reports. Returns 1 without gcc.
make_sanitized_copy() {
  local library path preload=${1:-} module options
  ensure_compiler && command -v gcc >/dev/null || { say "no gcc and no way to install it (Debian: apt-get install gcc python3-dev)"; return 1; }
  # Arrow throws C++ exceptions, which AddressSanitizer intercepts.
  # The runtime that is loaded first writes the reports of both to log_path.
  for library in $([ -n "$preload" ] || echo libubsan.so libasan.so) libstdc++.so.6; do
    path=$(gcc -print-file-name="$library")
    [ "$path" != "$library" ] || { say "gcc has no $library (Debian: apt-get install libgcc-12-dev)"; return 1; }
    preload+=${preload:+:}$path
  done
  say "building the compiled modules with sanitizers"
  # Python's own flags define signed overflow; -fstrict-overflow makes it an error again. The runtime is not linked; it
  # is loaded before all other libraries.
  CC=gcc LANCETABLE_CFLAGS="-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all -fstrict-overflow" \
    "$VENV_PYTHON" setup.py --quiet build_ext --parallel "$(nproc)" --build-lib build/sanitized/lib --build-temp build/sanitized/temp || return 1
  COPY=$(mktemp -d)
  trap 'rm -rf "$COPY"' EXIT
  cp -R lancetable tests integration scripts protos pyproject.toml setup.py MANIFEST.in README.md "$COPY"
  find "$COPY" -name '*.so' -delete
  cp -R build/sanitized/lib/. "$COPY"
  for module in $(cd "$COPY" && find lancetable -name '*.pyx'); do
    compgen -G "$COPY/${module%.pyx}.*.so" >/dev/null || { say "$module was not built"; return 1; }
  done
  mkdir "$COPY/reports"
  options="log_path=$COPY/reports/report:abort_on_error=0"
  # The allocators of the C library make accesses outside of bytes objects and Arrow buffers detectable.
  SANITIZED=(
    PYTHONPATH="$COPY" PYTHONMALLOC=malloc ARROW_DEFAULT_MEMORY_POOL=system LD_PRELOAD="$preload"
    ASAN_OPTIONS="$options:detect_leaks=0:allocator_may_return_null=1:handle_segv=2:verify_asan_link_order=0"
    UBSAN_OPTIONS="$options:print_stacktrace=1"
  )
}

# print_reports: write the reports of a run in COPY to standard error. Returns 1 if there are any.
print_reports() {
  local report count=0
  for report in "$COPY"/reports/*; do
    [ -e "$report" ] || continue
    cat "$report" >&2
    count=$((count + 1))
  done
  say "$count reports of the sanitizers"
  [ "$count" = 0 ]
}

# ensure_torch: install the CPU build of PyTorch into the environment of ensure_venv. PyPI has builds for GPUs only, of
# several gigabytes, so pip must be configured for an index of the others. Returns 1 if there is none.
ensure_torch() {
  local build=torch==2.13.0
  [ "$(uname)" != Linux ] || build+=+cpu
  "$VENV_PYTHON" -c 'import sys; from importlib.util import find_spec; sys.exit(find_spec("torchdata") is None)' && return 0
  say "installing $build"
  "$VENV_PYTHON" -m pip install --quiet --quiet --disable-pip-version-check "$build" torchdata 2>/dev/null
}

# ensure_java: find a Java runtime for Spark, or install that of Debian. Returns 1 if there is none.
ensure_java() {
  local version
  version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1 || true)
  if [ -n "$version" ] && [ "$version" -ge 17 ]; then
    return 0
  fi
  install default-jre-headless
}
