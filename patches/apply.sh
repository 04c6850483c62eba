#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Apply the patch series that fits a source tree of verl or verl-agent: all of it or nothing.
#
#   apply.sh TARGET             apply
#   apply.sh TARGET --reverse   take it back
#   add --check                 only say whether it would work; nothing is written
#
# TARGET is a git checkout, or the site-packages folder (or the verl folder in it) of an installed verl.
# Exit status: 0 done, or nothing to do; 1 refused, nothing changed; 2 wrong usage.
set -euo pipefail

patches=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=""
writing=0
suffix=.verl-entropy-new

say() { printf 'apply.sh: %s\n' "$*"; }
die() {
  say "$*" >&2
  exit 1
}
usage() {
  sed -n '3,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

# git in a folder that is no repository, whatever repository the caller or the target is in.
plain_git() {
  env -u GIT_DIR -u GIT_WORK_TREE -u GIT_INDEX_FILE GIT_CEILING_DIRECTORIES="$(dirname "$work")" \
    git -c core.autocrlf=false -c core.safecrlf=false "$@"
}

find_root() {
  local real
  real=$(realpath -e -- "$1" 2>/dev/null) || die "$1: no such folder"
  if [[ $(basename "$real") == verl && ! -f $real/verl/version/version ]]; then real=$(dirname "$real"); fi
  [[ -f $real/verl/version/version ]] || die "$1: no verl in it (no verl/version/version). Give a checkout of verl or verl-agent, or site-packages."
  printf '%s' "$real"
}

find_series() {
  local version project=verl
  version=$(tr -d '[:space:]' <"$root/verl/version/version")
  if [[ -f $root/gigpo/core_gigpo.py && -d $root/agent_system ]]; then project=verl-agent; fi
  case "$project $version" in
    "verl 0.9.1") printf 'verl-0.9.1' ;;
    "verl-agent 0.3.1.dev") printf 'verl-agent-796ed31' ;;
    *) die "$root holds $project $version; there are patches for verl 0.9.1 and verl-agent 0.3.1.dev (commit 796ed31)." ;;
  esac
}

is_checkout() { [[ $(git -C "$root" ls-files verl/__init__.py 2>/dev/null) == verl/__init__.py ]]; }

blob() { plain_git hash-object --no-filters "$root/$1"; }

# The blob that the series starts from (old) or ends at (new) for a file, from the patches' index lines.
known_blob() {
  awk -v file="b/$1" -v side="$2" '
    /^diff --git / { here = ($4 == file) }
    here && /^index / { split($2, id, /\.\./); if (side == "old") { print id[1]; exit } last = id[2] }
    END { if (side == "new") print last }' "${series[@]}"
}

# Try the series on a fresh copy of the files that it touches; what git says is in $work/log.
try() {
  local file patch order=("${series[@]}") reverse=()
  rm -rf "$work/tree"
  for file in "${files[@]}"; do
    [[ -f $root/$file ]] || { printf '%s: no such file\n' "$file" >"$work/log"; return 1; }
    mkdir -p "$work/tree/$(dirname "$file")"
    cp -- "$root/$file" "$work/tree/$file"
  done
  if [[ $1 == reverse ]]; then
    reverse=(--reverse)
    mapfile -t order < <(printf '%s\n' "${series[@]}" | sort -r)
  fi
  for patch in "${order[@]}"; do
    (cd "$work/tree" && plain_git apply "${reverse[@]}" --whitespace=nowarn "$patch") >"$work/log" 2>&1 ||
      { printf 'in %s\n' "$(basename "$patch")" >>"$work/log"; return 1; }
  done
}

check_clean() {
  local file changed=()
  if is_checkout; then
    mapfile -t changed < <(git -C "$root" status --porcelain --untracked-files=no -- "${files[@]}" | cut -c4-)
    [[ ${#changed[@]} -eq 0 ]] || die "uncommitted changes in ${changed[*]}; commit or stash them first. Nothing changed."
    return
  fi
  for file in "${files[@]}"; do
    [[ -f $root/$file && $(blob "$file") == "$(known_blob "$file" old)" ]] || changed+=("$file")
  done
  [[ ${#changed[@]} -eq 0 ]] || die "not as released: ${changed[*]}. Reinstall the package, or work in a git checkout. Nothing changed."
}

roll_back() {
  local file
  for file in "${files[@]}"; do
    cmp -s "$work/before/$file" "$root/$file" || { cp -p -- "$work/before/$file" "$root/$file$suffix" && mv -f -- "$root/$file$suffix" "$root/$file"; }
  done
  say "interrupted or failed; every file is as it was" >&2
}

clean_up() {
  local file
  if [[ $writing -eq 1 ]]; then roll_back; fi
  for file in "${files[@]:-}"; do [[ -z $file ]] || rm -f -- "$root/$file$suffix"; done
  [[ -z $work ]] || rm -rf -- "$work"
}

# New files beside the old ones first, then renames: hard links into a package cache stay as they are, and modes are kept.
install_tree() {
  local file
  for file in "${files[@]}"; do
    mkdir -p "$work/before/$(dirname "$file")"
    cp -p -- "$root/$file" "$work/before/$file"
    if ! cp -p -- "$root/$file" "$root/$file$suffix" || ! cat -- "$work/tree/$file" >"$root/$file$suffix"; then
      die "cannot write beside $root/$file. Nothing changed."
    fi
  done
  writing=1
  for file in "${files[@]}"; do mv -f -- "$root/$file$suffix" "$root/$file"; done
  writing=0
}

note_differences() {
  local file side=$1
  for file in "${files[@]}"; do
    [[ $(blob "$file") == "$(known_blob "$file" "$side")" ]] || say "note: $file is not that of $name; the context of each hunk fits"
  done
}

target="" direction=apply check=0 files=()
for argument in "$@"; do
  case "$argument" in
    --reverse | -R) direction=reverse ;;
    --check) check=1 ;;
    -*) usage ;;
    *) [[ -z $target ]] || usage; target=$argument ;;
  esac
done
[[ -n $target ]] || usage
command -v git >/dev/null || die "git is needed (only its apply command; TARGET need not be a checkout)"

root=$(find_root "$target")
name=$(find_series)
series=("$patches/$name"/[0-9]*.patch)
mapfile -t files < <(sed -n 's|^+++ b/||p' "${series[@]}" | sort -u)
trap clean_up EXIT
trap 'exit 1' INT TERM HUP
work=$(realpath "$(mktemp -d)")

if [[ $direction == apply ]]; then other=reverse; else other=apply; fi
if ! try "$direction"; then
  cp "$work/log" "$work/why"
  if try "$other"; then
    if [[ $direction == apply ]]; then say "$name is applied already in $root; nothing to do"; else say "$name is not applied in $root; nothing to do"; fi
    exit 0
  fi
  if [[ $direction == apply ]]; then check_clean; fi
  cat "$work/why" >&2
  die "$name does not fit $root (partly applied, or other source). Nothing changed."
fi
if [[ $direction == apply ]]; then check_clean; fi
if [[ $check -eq 1 ]]; then
  say "$name would $direction cleanly in $root (${#series[@]} patches, ${#files[@]} files)"
  exit 0
fi
if [[ $direction == apply ]]; then note_differences old; fi
install_tree
if [[ $direction == reverse ]]; then note_differences old; fi
say "$name: $direction done in $root (${#series[@]} patches, ${#files[@]} files)"
