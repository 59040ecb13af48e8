#!/bin/sh
# Builds the release programs and installs them with completions and man pages.
#
#   sh examples/install.sh [DIR]
#
# Programs go to DIR/bin, completions and man pages to DIR/share (default ~/.local). `cargo install --path tools/NAME`
# installs a single program without the rest.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
dir=${1:-$HOME/.local}
tools="ms-tokenizer ms-preprocess ms-pack ms-train ms-convert ms-infer ms-eval ms-profile"

set --
for tool in $tools; do
  set -- "$@" -p "$tool"
done
echo "\$ cargo build --release --locked $*"
(cd "$root" && cargo build --release --locked "$@")
built=${CARGO_TARGET_DIR:-$root/target}/release
bash=$dir/share/bash-completion/completions
zsh=$dir/share/zsh/site-functions
fish=$dir/share/fish/vendor_completions.d
man=$dir/share/man/man1
mkdir -p "$dir/bin" "$bash" "$zsh" "$fish" "$man"
for tool in $tools; do
  # Under another name first: a program that runs cannot be written over.
  cp "$built/$tool" "$dir/bin/.$tool.new"
  mv "$dir/bin/.$tool.new" "$dir/bin/$tool"
  "$dir/bin/$tool" completions bash > "$bash/$tool"
  "$dir/bin/$tool" completions zsh > "$zsh/_$tool"
  "$dir/bin/$tool" completions fish > "$fish/$tool.fish"
  "$dir/bin/$tool" man > "$man/$tool.1"
done
echo "installed in $dir/bin: $tools"
case :$PATH: in
  *":$dir/bin:"*) ;;
  *) echo "add $dir/bin to PATH" ;;
esac
