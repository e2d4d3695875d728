#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs every `motet` command that a code block of README.md shows, on the sample checkpoint; check and bench in a quick variant.
# usage: readme_test.sh MOTET_PROGRAM SOURCE_DIR
set -eu
program=$1 source=$2 sample=$2/sample/gpt-oss-tiny count=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT
commands=$(awk '/^```/ { code = !code; next } code && /^motet / { sub(/ *#.*/, ""); print }' "$source/README.md")
while IFS= read -r command; do
  [ -n "$command" ] || continue
  set -f  # words, no patterns
  set -- $command
  set +f
  shift
  case $1 in
    check) set -- "$@" --filter mxfp4 ;;
    bench) set -- "$@" --experts 4 --repeat 1 ;;
  esac
  arguments=$#
  while [ "$arguments" -gt 0 ]; do  # once round: CHECKPOINT becomes the sample
    word=$1
    shift
    [ "$word" != CHECKPOINT ] || word=$sample
    set -- "$@" "$word"
    arguments=$((arguments - 1))
  done
  "$program" "$@" >"$output" 2>&1 </dev/null || { code=$?; cat "$output"; echo "README.md shows '$command', which ended with exit status $code"; exit 1; }
  [ -s "$output" ] || { echo "README.md shows '$command', which printed nothing"; exit 1; }
  echo "ok  $command"
  count=$((count + 1))
done <<END
$commands
END
[ "$count" -gt 0 ] || { echo "README.md shows no motet command"; exit 1; }
echo "readme: $count commands"
