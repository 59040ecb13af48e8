//! Every option of `ms-infer`.

use crate::commands::{CHAT, DRAWN, EVERY, GENERATE, LOGITS, TEXTS, TURNS};
use ms_generate::Sampling;
use ms_options::{Loading, TokenizerFolder};
use std::path::PathBuf;

options! {
    /// What the model is asked.
    pub(crate) struct Asked in "Generation" {
        pub(crate) tasks: Vec<String> = "--task", "what to run", group = "Task";
        pub(crate) prompts: Vec<String> = "--prompt", "texts to continue, one after the other; - reads one from stdin; the first turn of a chat", own = own("prompt"), by = TEXTS;
        pub(crate) at_once: usize = "--prompts-at-once", "prompts that go through the model side by side, at most, each with a cache of its own; every text is what it is alone", range = "[1,8]", own = own_or("prompts_at_once", "1"), by = &[GENERATE];
        pub(crate) max_new_tokens: i64 = "--max-new-tokens", "tokens to generate at most; -1: until the window is full", range = "[-1,268435456]", by = TEXTS;
        pub(crate) stops: Vec<String> = "--stop", "texts that end the answer; they are not part of it", own = own("stop"), by = TEXTS;
        pub(crate) ignore_eos: bool = "--ignore-eos", "go on after a token that ends a text", own = own_or("ignore_eos", "false"), by = TEXTS;
        pub(crate) no_echo: bool = "--no-echo", "leave the prompt out of what is printed", own = own_or("no_echo", "false"), by = &[GENERATE];
        pub(crate) bf16: bool = "--bf16", "compute in bfloat16, keep master weights in float32", group = "Precision";
        pub(crate) input: Option<PathBuf> = "--input", "logits: safetensors file with input_ids [B,S]", own = own("input"), by = &[LOGITS];
        pub(crate) output: Option<PathBuf> = "--output", "logits: safetensors file to write logits [B,S,V] to", own = own("output"), by = &[LOGITS];
    }
}

options! {
    /// What a chat looks like.
    pub(crate) struct Chat in "Generation" {
        pub(crate) system: Option<String> = "--system", "system message of a chat", own = own("system");
        pub(crate) turns: usize = "--history-turns", "turns of a chat that are kept; once the oldest is dropped, what is kept is computed anew with every turn", range = "[0,)";
    }
}

options! {
    /// How turns become a prompt.
    pub(crate) struct Forms in "Generation" {
        pub(crate) own_template: bool = "--hf-chat-template", "chat template of the tokenizer";
        pub(crate) template: Option<String> = "--prompt-type", "name of the prompt template", group = "Data";
        pub(crate) templates: Option<PathBuf> = "--prompt-type-path", "file of prompt templates", group = "Data";
    }
}

options! {
    /// How tokens are drawn.
    pub(crate) struct Draws in "Generation" {
        temperature: f64 = "--temperature", "divides the logits; 0 takes the likeliest token", range = "[0,)";
        top_k: usize = "--top-k", "sample among the k likeliest tokens; 0 turns it off", range = "[0,268435456]";
        top_p: f64 = "--top-p", "sample among the likeliest tokens of this mass; 0 turns it off", range = "[0,1]";
        min_p: f64 = "--min-p", "sample among tokens at least so likely as this share of the likeliest; 0 turns it off", range = "[0,1]", own = own_or("min_p", "0.0");
        repetition_penalty: f64 = "--repetition-penalty", "divides the logits above 0 of tokens that occurred, and multiplies those below", range = "[0.000001,1000000]", own = own_or("repetition_penalty", "1.0");
        seed: u64 = "--seed", "seed of weights, data order and sampling", group = "Data", range = "[0,4294967295]";
    }
}

gathered_options! {
    /// What is asked of a model, as the command line says it.
    pub(crate) struct Options {
        pub(crate) loading: Loading = EVERY,
        pub(crate) tokenizer: TokenizerFolder = TEXTS,
        pub(crate) asked: Asked = EVERY,
        pub(crate) chat: Chat = &[CHAT],
        pub(crate) forms: Forms = TURNS,
        pub(crate) sampling: Draws = DRAWN,
    }
}

impl Draws {
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
