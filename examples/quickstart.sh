#!/bin/sh
# The whole life of a small model: text -> tokens -> dataset -> training -> checkpoint -> conversion -> generation ->
# evaluation -> profile. Offline after the build; every command it shows can be copied and run.
#
#   sh examples/quickstart.sh [--fresh] [--out DIR] [--bin DIR | --release] [--small] [FILE...]
#
# FILEs are the training text (default: the Markdown and Rust sources that cargo has unpacked in its registry).
# Finished stages are kept in --out (default run/quickstart) and not run again; --fresh starts over.
# The programs are built as the tests are, so that the two share one build; --release builds those that are installed,
# --bin DIR uses programs that are built already; --small trains a tiny model for seconds (the end-to-end test).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
out=$root/run/quickstart
bin=
release=
fresh=
small=
while [ $# -gt 0 ]; do
  case $1 in
    --fresh) fresh=1 ;;
    --small) small=1 ;;
    --release) release=--release ;;
    --out | --bin)
      [ $# -gt 1 ] || { echo "quickstart: $1 needs a folder" >&2; exit 2; }
      if [ "$1" = --out ]; then out=$2; else bin=$2; fi
      shift ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --) shift; break ;;
    -*) echo "quickstart: unknown option $1" >&2; exit 2 ;;
    *) break ;;
  esac
  shift
done
for file in "$@"; do
  [ -f "$file" ] && [ -r "$file" ] || { echo "quickstart: cannot read $file" >&2; exit 2; }
done
from=$PWD

if [ -z "$bin" ]; then
  # shellcheck disable=SC2086
  echo "\$ cargo build --workspace --bins --locked $release"
  # shellcheck disable=SC2086
  (cd "$root" && cargo build --workspace --bins --locked $release)
  bin=${CARGO_TARGET_DIR:-$root/target}/${release:+release}
  [ -n "$release" ] || bin=${bin}debug
fi
bin=$(cd "$bin" && pwd)
if [ -n "$fresh" ] && [ -d "$out" ] && [ -n "$(ls -A "$out")" ]; then
  # --out may name any folder; only one that this script has filled is removed.
  [ -e "$out/.quickstart" ] || [ -e "$out/.done-1-text" ] ||
    { echo "quickstart: --fresh would remove $out, which is not a quickstart's folder" >&2; exit 2; }
  rm -rf "$out"
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)
: > "$out/.quickstart"
PATH=$bin:$PATH
export PATH

if [ -n "$small" ]; then
  vocab=1024 text_mb=2 hidden=64 layers=2 heads=4 groups=2 ffn=192 seq=128 iters=60 sft_iters=12 warmup=5 lr=4e-3
else
  vocab=8192 text_mb=24 hidden=384 layers=6 heads=6 groups=2 ffn=1024 seq=512 iters=40 sft_iters=16 warmup=10 lr=1.5e-3
fi
model="--num-layers $layers --hidden-size $hidden --num-attention-heads $heads --group-query-attention
  --num-query-groups $groups --ffn-hidden-size $ffn --qk-layernorm --normalization RMSNorm --swiglu
  --position-embedding-type rope --rotary-base 10000 --norm-epsilon 1e-6 --disable-bias-linear
  --max-position-embeddings $seq --make-vocab-size-divisible-by 1"
batch="--seq-length $seq --micro-batch-size 4 --global-batch-size 8 --bf16 --nproc-per-node 2
  --use-distributed-optimizer"
summary=$out/summary.txt
started=$(date +%s)

# Shows a command and runs it.
run() {
  printf '\n$'
  for word in "$@"; do
    case $word in *[!A-Za-z0-9_./:=,@%+-]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
  done
  printf '\n'
  "$@"
}

# Shows a command, runs it, and keeps what it prints in a file; fails as the command does.
logged() {
  log=$1
  shift
  rm -f .failed
  { run "$@" || echo $? > .failed; } | tee "$log"
  [ ! -e .failed ] || exit "$(cat .failed)"
}

# stage NAME TITLE: true if the stage has to run.
stage() {
  if [ -e "$out/.done-$1" ]; then
    echo "== $2: done before, kept (--fresh starts over)"
    return 1
  fi
  echo
  echo "== $2"
  stage_start=$(date +%s)
}

# done_with NAME TEXT...: notes what the stage reached for the closing table.
done_with() {
  name=$1
  shift
  printf '%-24s %5ss  %s\n' "$name" "$(($(date +%s) - stage_start))" "$*" > "$out/.done-$name.part"
  mv "$out/.done-$name.part" "$out/.done-$name"
}

# number KEY FILE: a number out of a JSON report.
number() { sed -n "s/.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$2" | head -n 1; }

cd "$out"

if stage 1-text "0. text"; then
  if [ $# -gt 0 ]; then
    for file in "$@"; do
      case $file in /*) ;; *) file=$from/$file ;; esac
      printf '%s\n' "$file"
    done > files.txt
  else
    registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
    [ -d "$registry" ] || { echo "quickstart: no sources in $registry; give text files as arguments" >&2; exit 1; }
    find "$registry" -type f \( -name '*.md' -o -name '*.rs' \) -size -200k | LC_ALL=C sort > all.txt
    # An even sample over all crates, of about text_mb megabytes.
    tr '\n' '\0' < all.txt | xargs -0 wc -c | awk -v want="$text_mb" '
      $2 == "total" { next }
      { n++; size[n] = $1; name[n] = substr($0, index($0, $2)); sum += $1 }
      END { step = sum / (want * 1e6); if (step < 1) step = 1
            for (x = 1; x <= n; x += step) print name[int(x)] }' > files.txt
    rm all.txt
  fi
  done_with 1-text "$(wc -l < files.txt | tr -d ' ') files"
fi

if stage 2-tokenizer "1. a byte-level BPE tokenizer of $vocab tokens"; then
  run ms-tokenizer train --vocab-size $vocab --output tokenizer --force --files-from files.txt
  done_with 2-tokenizer "$out/tokenizer"
fi

if stage 3-dataset "2. text -> Megatron's indexed dataset"; then
  run ms-preprocess --style pretrain --documents files --files-from files.txt --tokenizer-name-or-path tokenizer \
    --append-eod --workers 2 --output-prefix corpus --force
  done_with 3-dataset "$(wc -c < corpus_text_document.bin | tr -d ' ') bytes of tokens in $out/corpus_text_document.bin"
fi

if stage 4-conversations "2. conversations | packed fine-tuning set"; then
  echo
  echo "\$ ms-preprocess --style sharegpt ... | ms-pack pack --seq-length $seq --output-prefix sft"
  ms-preprocess --style sharegpt --input "$here/quickstart/conversations.json" --prompt-type qwen \
    --tokenizer-name-or-path tokenizer --output-prefix - |
    ms-pack pack --seq-length $seq --output-prefix sft --force
  done_with 4-conversations "$(wc -c < sft_packed_input_ids_document.bin | tr -d ' ') bytes in $out/sft_packed_*"
fi

if stage 5-pretrain "3. pretraining on two ranks"; then
  # shellcheck disable=SC2086
  logged pretrain.log ms-train $model $batch --tokenizer-name-or-path tokenizer --data-path corpus_text_document --split 98,2,0 \
    --train-iters $iters --lr $lr --min-lr 1.5e-4 --lr-decay-style cosine --lr-warmup-iters $warmup \
    --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1.0 --init-method-std 0.02 --seed 42 \
    --eval-interval $((iters / 4)) --eval-iters 4 --log-interval 10 --log-throughput \
    --save pretrained --save-interval $((iters / 2)) --load pretrained --metrics-file pretrain.jsonl \
    --tensorboard-dir tensorboard
  losses=$(sed -n 's/.*"validation lm loss": *\([0-9.]*\).*/\1/p' pretrain.validation.jsonl)
  first=$(printf '%s\n' "$losses" | head -n 1)
  last=$(printf '%s\n' "$losses" | tail -n 1)
  awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a - 0.1) }' || {
    echo "quickstart: the validation loss did not fall: $first -> $last" >&2
    exit 1
  }
  speed=$(sed -n 's/^done: .* \([0-9]*\) tokens\/s.*/\1/p' pretrain.log)
  done_with 5-pretrain "validation loss $first -> $last, $speed tokens/s"
fi

if stage 6-finetune "3. supervised fine-tuning on the packed set"; then
  # shellcheck disable=SC2086
  logged finetune.log ms-train --stage sft --is-instruction-dataset --reset-position-ids --prompt-type qwen --load pretrained \
    --finetune $batch --tokenizer-name-or-path tokenizer --data-path sft --split 90,10,0 --train-iters $sft_iters \
    --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --seed 42 --eval-interval 1000 --eval-iters 1 --log-interval 4 \
    --save finetuned --metrics-file finetune.jsonl
  first=$(sed -n 's/.*"lm loss":\([0-9.]*\).*/\1/p' finetune.jsonl | head -n 1)
  last=$(sed -n 's/.*"validation lm loss": *\([0-9.]*\).*/\1/p' finetune.validation.jsonl | tail -n 1)
  done_with 6-finetune "loss $first -> $last (validation)"
fi

if stage 7-convert "4. checkpoint -> Hugging Face -> Megatron with tp 2 -> Hugging Face"; then
  run ms-convert mcore hf --load finetuned --save hf --hf-cfg-dir tokenizer --force
  run ms-convert hf mcore --load hf --save mcore-tp2 --tp 2 --force
  run ms-convert mcore hf --load mcore-tp2 --save hf-again --hf-cfg-dir tokenizer --force
  run diff -r hf hf-again
  echo "the two Hugging Face folders are byte-identical"
  done_with 7-convert "$out/hf, $out/mcore-tp2"
fi

if stage 8-generate "5. generation"; then
  logged generated.txt ms-infer generate --load hf --prompt '/// Returns the number of' --max-new-tokens 48 --temperature 0.7 --top-k 40 \
    --seed 7
  printf '\n$ echo "What is the capital of France?" | ms-infer chat --load hf --max-new-tokens 32 --temperature 0\n'
  echo "What is the capital of France?" > question.txt
  ms-infer chat --load hf --max-new-tokens 32 --temperature 0 < question.txt > chat.txt
  cat chat.txt
  done_with 8-generate "$out/generated.txt, $out/chat.txt"
fi

if stage 9-evaluate "6. evaluation on a quiz in MMLU's layout"; then
  run ms-eval mmlu --data-path "$here/quickstart/quiz" --load hf --protocol harness --output scores
  done_with 9-evaluate "accuracy $(number acc scores/results.json) over $(number question_n scores/results.json) questions"
fi

if stage A-profile "7. where a step's time goes"; then
  # shellcheck disable=SC2086
  run ms-train --load pretrained --finetune $batch --tokenizer-name-or-path tokenizer --data-path corpus_text_document \
    --split 98,2,0 --train-iters 6 --lr 1e-4 --eval-iters 0 --log-interval 2 --profile --profile-step-start 2 \
    --profile-step-end 5 --profile-save-path trace
  run ms-profile report trace
  ms-profile report trace --json > profile.json
  done_with A-profile "MFU $(number mfu profile.json), trace in $out/trace (open trace_view.json in Perfetto)"
fi

echo
echo "== summary (stage, seconds, result)"
cat "$out"/.done-* > "$summary"
cat "$summary"
echo "all of it in $out; this run took $(($(date +%s) - started)) s"
