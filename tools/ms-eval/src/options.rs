//! Every option of `ms-eval`.

use ms_options::{Loading, TokenizerFolder};
use std::path::PathBuf;

options! {
    /// What is measured, and how.
    pub(crate) struct TaskOptions in "Task" {
        pub(crate) tasks: Vec<String> = "--task", "benchmark to run: mmlu, boolq, hellaswag, cmmlu or ceval";
        pub(crate) folders: Vec<String> = "--task-data-path", "folder of the benchmark's files";
        pub(crate) data: Vec<String> = "--data-path", "folder of the benchmark's files, as --task-data-path", group = "Data";
        pub(crate) protocol: String = "--protocol", "whose prompts and scoring: MindSpeed-LLM's or lm-evaluation-harness'", own = own_of("protocol", "\"mindspeed\"", "mindspeed,harness");
        pub(crate) shots: Option<usize> = "--num-fewshot", "with --protocol harness: number of solved examples in a prompt, for benchmarks that have them (default: 5)", range = "[0,1000]", own = own("num_fewshot");
        pub(crate) most: Option<usize> = "--max-eval-samples", "number of questions to use from each file", range = "[1,)";
        pub(crate) max_new_tokens: usize = "--max-new-tokens", "maximum number of tokens to generate", group = "Generation", range = "[1,268435456]";
        pub(crate) no_chat_template: bool = "--no-chat-template", "plain prompts even if the tokenizer has a chat template";
        pub(crate) output: Option<PathBuf> = "--output", "folder for results.json and samples.jsonl", group = "Output", own = own("output");
    }
}

gathered_options! {
    /// A run over benchmarks, as the command line says it.
    pub(crate) struct Options {
        pub(crate) loading: Loading,
        pub(crate) tokenizer: TokenizerFolder,
        pub(crate) asked: TaskOptions,
    }
}
