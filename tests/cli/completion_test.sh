#!/bin/bash
# Completion scripts and the man page: they are well-formed, and know what --help knows.
set -u
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
for shell in bash zsh fish; do
  "$program" completion $shell > dsmoe.$shell || fail "completion $shell: exit $?"
  command -v $shell > /dev/null && { $shell -n dsmoe.$shell || fail "$shell cannot read its script"; }
done
"$program" completion tcsh > /dev/null 2> err
[ $? = 2 ] && grep -q "expected bash, zsh or fish" err || fail "tcsh: $(cat err)"

source ./dsmoe.bash
compopt() { :; } # only known while a completion runs
completes() { # EXPECTED WORDS...: the last word is being typed
  local expected=$1
  shift
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  COMPREPLY=()
  _dsmoe
  [ "${COMPREPLY[*]}" = "$expected" ] || fail "'$*': '${COMPREPLY[*]}', expected '$expected'"
}
completes "train" dsmoe tr
completes "--version" dsmoe --v
completes "--weight-decay" dsmoe train --we
completes "--keep --keep-every --keep-best" dsmoe train --config c.json --kee
completes "cpu cuda" dsmoe generate model --device ""
completes "" dsmoe generate model --temperature ""
completes "encode" dsmoe tokenizer en
completes "--no-special" dsmoe tokenizer encode --no
mkdir model
touch corpus.txt
completes "corpus.txt" dsmoe train --data co
completes "model" dsmoe generate mo

# Every long option that the help lists is offered.
"$program" train --help | grep -o '^  \(-., \)\{0,1\}--[a-z-]*' | grep -o -- '--[a-z-]*' | sort > listed
grep "^    'train') words=" dsmoe.bash | grep -o -- '--[a-z-]*' | sort > offered
[ -s listed ] || fail "no options in train --help"
missing=$(comm -23 listed offered | grep -v '^--help$')
[ -z "$missing" ] || fail "bash does not offer $missing"
for option in $(grep -v '^--help$' listed); do
  grep -q -- " -l ${option#--} " dsmoe.fish || fail "fish does not offer $option"
  grep -q -- "$option\[" dsmoe.zsh || fail "zsh does not offer $option"
done

# fish itself, where there is one: what it offers behind these words.
fish_offers() { # EXPECTED LINE
  local offered
  offered=$(HOME=$work fish -c "source dsmoe.fish; complete -C '$2'" 2>&1 | cut -f1 | tr '\n' ' ')
  [ "$offered" = "$1" ] || fail "fish, '$2': '$offered', expected '$1'"
}
if command -v fish > /dev/null; then
  fish_offers "train " "dsmoe tr"
  fish_offers "cpu cuda " "dsmoe generate model --device "
  fish_offers "" "dsmoe generate model --temperature "
  fish_offers "decode encode train " "dsmoe tokenizer "
  fish_offers "--no-special " "dsmoe tokenizer encode --no"
  fish_offers "" "dsmoe tokenizer train --we" # an option of the other train
  fish_offers "bash fish zsh " "dsmoe completion "
  fish_offers "corpus.txt " "dsmoe train --data co"
  fish_offers "model/ " "dsmoe generate mo"
fi
# zsh refuses a second argument that takes all that is left.
for command in encode decode generate report; do
  rests=$(sed -n "/^ *$command)$/,/;;/p" dsmoe.zsh | grep -c "^ *'\*:")
  [ "$rests" -le 1 ] || fail "zsh: $command has $rests arguments that take the rest"
done
sed -n '/^ *encode)$/,/;;/p' dsmoe.zsh | grep -q "'1:MODEL:_files'" || fail "zsh: the first argument of encode is no path"

"$program" man > dsmoe.1 || fail "man: exit $?"
head -1 dsmoe.1 | grep -q '^\.TH DSMOE 1 ' || fail "no title: $(head -1 dsmoe.1)"
for option in $(cat listed); do
  [ "$option" = --help ] || grep -qF -- "\\fB${option//-/\\-}\\fR" dsmoe.1 || fail "man does not know $option"
done
if command -v groff > /dev/null; then
  groff -man -Tutf8 -ww dsmoe.1 > page 2> warnings || fail "groff: $(cat warnings)"
  [ ! -s warnings ] || fail "groff warns: $(head -3 warnings)"
fi
echo "ok"
