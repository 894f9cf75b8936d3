# What ./run and ./test share: installing packages and building a preset. Sourced, not run.
#
# Set by the caller: root (of the repository), install (yes or no), verbose (yes or no), configure
# (options for CMake).

say() { printf '%s\n' "$*" >&2; }

# install_packages KIND...: the packages of cmake/debian-packages.txt marked with one of the kinds.
install_packages() {
  [[ $install == yes ]] || return 0
  if ! command -v dpkg-query >/dev/null; then
    say "This is not Debian: nothing is installed; see cmake/debian-packages.txt for what is needed."
    return 0
  fi
  local kind package missing=() as_root=()
  while read -r kind package; do
    [[ " $* " == *" $kind "* ]] || continue
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      missing+=("$package")
  done < <(grep -v '^#' "$root/cmake/debian-packages.txt")
  ((${#missing[@]})) || return 0

  if ((EUID)); then
    if ! command -v sudo >/dev/null; then
      say "Missing Debian packages: ${missing[*]}"
      say "Install them as root, or skip this step with --no-install."
      return 1
    fi
    as_root=(sudo)
  fi
  say "Installing missing Debian packages: ${missing[*]}"
  local log
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    say "apt-get failed; the whole log is $log"
    return 1
  fi
  rm -f "$log"
}

# Copies build output to the log $1; on a terminal shows ninja's counter as one line, with
# verbose=yes everything.
show_progress() {
  local line
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$1"
    if [[ $verbose == yes ]]; then
      printf '%s\n' "$line" >&2
    elif [[ -t 2 && $line == \[* ]]; then
      printf '\r\033[K%.*s' "$((${COLUMNS:-80} - 1))" "$line" >&2
    fi
  done
  if [[ -t 2 && $verbose == no ]]; then printf '\r\033[K' >&2; fi
}

# build_preset PRESET [TARGET...]: configures, with the options in `configure`, and builds into
# build/PRESET; quiet unless it fails.
build_preset() {
  local preset=$1 log=$root/build/$1.log
  shift
  mkdir -p "$root/build"
  : >"$log"
  say "Building $preset in build/$preset"
  if ! { (cd "$root" && cmake --preset "$preset" "${configure[@]}" &&
    cmake --build --preset "$preset" ${1:+--target "$@"}) 2>&1 | show_progress "$log"; }; then
    [[ $verbose == yes ]] || grep -v '^\[[0-9]*/[0-9]*\] [A-Z][a-z]*ing ' "$log" | tail -n 60 >&2
    say "Building $preset failed; the whole log is build/$preset.log"
    return 1
  fi
}
