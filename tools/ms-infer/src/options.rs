//! Every option of `ms-infer`.

use crate::commands::{CHAT, DRAWN, EVERY, GENERATE, LOGITS, TEXTS, TURNS};
use ms_generate::Sampling;
use ms_options::{Loading, TokenizerFolder};
use std::path::PathBuf;

options! {
    /// What the model is asked.
    pub(crate) struct GenerationOptions in "Generation" {
        pub(crate) tasks: Vec<String> = "--task", "tasks to run: greedy, do_sample, chat", group = "Task";
        pub(crate) prompts: Vec<String> = "--prompt", "texts to continue, one after the other (- reads one from stdin); in a chat, its first turn", own = own("prompt"), by = TEXTS;
        pub(crate) at_once: usize = "--prompts-at-once", "maximum number of prompts processed in parallel, each with its own cache; every text is what it is alone", range = "[1,8]", own = own_or("prompts_at_once", "1"), by = &[GENERATE];
        pub(crate) max_new_tokens: i64 = "--max-new-tokens", "maximum number of tokens to generate (-1: until the context is full)", range = "[-1,268435456]", by = TEXTS;
        pub(crate) stops: Vec<String> = "--stop", "texts that end the answer and are not part of it", own = own("stop"), by = TEXTS;
        pub(crate) ignore_eos: bool = "--ignore-eos", "continue after an end-of-text token", own = own_or("ignore_eos", "false"), by = TEXTS;
        pub(crate) no_echo: bool = "--no-echo", "do not print the prompt before its continuation", own = own_or("no_echo", "false"), by = &[GENERATE];
        pub(crate) bf16: bool = "--bf16", "compute in bfloat16", group = "Precision";
        pub(crate) input: Option<PathBuf> = "--input", "logits: safetensors file with input_ids [B,S] (- for stdin)", own = own("input"), by = &[LOGITS];
        pub(crate) output: Option<PathBuf> = "--output", "logits: safetensors file for logits [B,S,V] (- for stdout)", own = own("output"), by = &[LOGITS];
    }
}

options! {
    /// What a chat looks like.
    pub(crate) struct Chat in "Generation" {
        pub(crate) system: Option<String> = "--system", "system message of the chat", own = own("system");
        pub(crate) turns: usize = "--history-turns", "number of chat turns to keep; once the oldest has been dropped, the kept ones are computed again with every turn", range = "[0,)";
    }
}

options! {
    /// How turns become a prompt.
    pub(crate) struct PromptOptions in "Generation" {
        pub(crate) own_template: bool = "--hf-chat-template", "use the tokenizer's chat template";
        pub(crate) template: Option<String> = "--prompt-type", "name of the prompt template", group = "Data";
        pub(crate) templates: Option<PathBuf> = "--prompt-type-path", "file of prompt templates", group = "Data";
    }
}

options! {
    /// How tokens are drawn.
    pub(crate) struct SamplingOptions in "Generation" {
        temperature: f64 = "--temperature", "divide logits by this number; 0 takes the likeliest token (greedy)", range = "[0,)";
        top_k: usize = "--top-k", "sample among the k likeliest tokens (0: off)", range = "[0,268435456]";
        top_p: f64 = "--top-p", "sample among the likeliest tokens with this total probability (0: off)", range = "[0,1]";
        min_p: f64 = "--min-p", "sample among tokens with at least this fraction of the likeliest token's probability (0: off)", range = "[0,1]", own = own_or("min_p", "0.0");
        repetition_penalty: f64 = "--repetition-penalty", "divide positive logits of tokens that occurred by this number, multiply negative ones", range = "[0.000001,1000000]", own = own_or("repetition_penalty", "1.0");
        seed: u64 = "--seed", "seed of sampling", group = "Data", range = "[0,4294967295]";
    }
}

gathered_options! {
    /// What is asked of a model, as the command line says it.
    pub(crate) struct Options {
        pub(crate) loading: Loading = EVERY,
        pub(crate) tokenizer: TokenizerFolder = TEXTS,
        pub(crate) generation: GenerationOptions = EVERY,
        pub(crate) chat: Chat = &[CHAT],
        pub(crate) forms: PromptOptions = TURNS,
        pub(crate) sampling: SamplingOptions = DRAWN,
    }
}

impl SamplingOptions {
    /// Whether nothing is drawn.
    pub(crate) fn takes_the_likeliest(&self) -> bool {
        self.temperature == 0.0
    }

    /// The sampling rule.
    ///
    /// # Errors
    /// If its numbers do not make one.
    pub(crate) fn rule(&self) -> anyhow::Result<Sampling> {
        let rule = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
        };
        rule.validate().map_err(|e| ms_cli::Usage(format!("--{e}")))?;
        Ok(rule)
    }
}
