//! Slots: a weight's position in the tree of parts, and the name printed from it.

use serde::{Deserialize, Serialize};

/// Which part of the model a parameter belongs to; decides its pipeline stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Before the first layer.
    Embedding,
    /// In this layer, counted over the whole model.
    Layer(usize),
    /// After the last layer.
    Head,
    /// In this multi-token prediction layer, after the head.
    Mtp(usize),
}

/// The part of a model, of a layer or of a prediction module that holds a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The embedding of tokens and positions.
    Embedding,
    /// The norm after the last layer, or after a prediction module.
    Last,
    /// The output layer.
    Output,
    /// The head of a reward model.
    Reward,
    /// What is a prediction module's own, in front of its layer.
    Prediction,
    /// The layer itself: norms around what is in it.
    Layer,
    /// Attention of any kind.
    Attention,
    /// What picks keys for sparse attention.
    Indexer,
    /// What pools keys and values into entries.
    Compressor,
    /// What picks entries.
    EntryIndexer,
    /// What pools the keys of the picking of entries.
    EntryIndexerCompressor,
    /// Mamba2 or Mamba3.
    StateSpace,
    /// A gated delta net.
    GatedDelta,
    /// A dense feed-forward layer.
    Dense,
    /// What chooses experts.
    Router,
    /// Experts, stacked.
    Experts,
    /// Experts that see every token.
    SharedExperts,
    /// Hyper-connections around the mixer.
    MixerStreams,
    /// Hyper-connections around the feed-forward layer.
    FeedStreams,
    /// Where hyper-connections end.
    LastStreams,
}

impl Part {
    /// Its prefix in Megatron's names, before the weight's own name.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Last => "decoder",
            Self::Output => "output_layer",
            Self::Reward => "rm_head",
            Self::Prediction | Self::Layer => "",
            Self::Attention | Self::GatedDelta => "self_attention",
            Self::Indexer => "self_attention.dsa_indexer",
            Self::Compressor => "self_attention.compressor",
            Self::EntryIndexer => "self_attention.indexer",
            Self::EntryIndexerCompressor => "self_attention.indexer.kv_compressor",
            Self::StateSpace => "mixer",
            Self::Dense => "mlp",
            Self::Router => "mlp.router",
            Self::Experts => "mlp.experts",
            Self::SharedExperts => "mlp.shared_experts",
            Self::MixerStreams => "attn_mhc",
            Self::FeedStreams => "mlp_mhc",
            Self::LastStreams => "hc_head",
        }
    }

    /// Whether it is a layer's MLP, a part of it or something around it.
    pub const fn of_network(self) -> bool {
        use Part::{Dense, Experts, FeedStreams, Router, SharedExperts};
        matches!(self, Dense | Router | Experts | SharedExperts | FeedStreams)
    }
}

/// One variant for each role, and its spelling in names.
macro_rules! roles {
    ($($(#[$doc:meta])* $role:ident $word:literal $form:ident,)+) => {
        /// What a weight does in its part.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Role {
            $($(#[$doc])* $role,)+
        }

        impl Role {
            /// Its word in Megatron's names; empty for a part with one module.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$role => $word,)+ }
            }

            /// Whether it is a module with a weight and possibly a bias. Others are standalone tensors, whose names end with
            /// their role.
            pub const fn is_module(self) -> bool {
                match self { $(Self::$role => roles!(@ $form),)+ }
            }
        }
    };
    (@ module) => { true };
    (@ tensor) => { false };
}

roles! {
    /// The only module of its part.
    Own "" module,
    /// The embedding table.
    WordEmbeddings "word_embeddings" module,
    /// The norm of the token embeddings.
    WordEmbeddingsNorm "word_embeddings.norm" module,
    /// The table of learned positions.
    PositionEmbeddings "position_embeddings" module,
    /// The norm after the last layer.
    FinalLayernorm "final_layernorm" module,
    /// The same in models with Mamba2.
    FinalNorm "final_norm" module,
    /// The norm of the token embedding that a prediction module receives.
    Enorm "enorm" module,
    /// The norm of the stream that a prediction module is given.
    Hnorm "hnorm" module,
    /// The joint projection of both.
    EhProj "eh_proj" module,
    /// The norm in front of the mixer.
    InputLayernorm "input_layernorm" module,
    /// The norm after the mixer.
    PostAttnNorm "post_attn_norm" module,
    /// The norm in front of the feed-forward layer.
    PreMlpLayernorm "pre_mlp_layernorm" module,
    /// The norm after it.
    PostMlpLayernorm "post_mlp_layernorm" module,
    /// The only norm of a part.
    Norm "norm" module,
    /// Queries, keys and values in one; with latents both ways down.
    LinearQkv "linear_qkv" module,
    /// The output projection of attention.
    LinearProj "linear_proj" module,
    /// Queries alone.
    QProj "q_proj" module,
    /// Keys alone.
    KProj "k_proj" module,
    /// Values alone.
    VProj "v_proj" module,
    /// A gate of each head.
    GProj "g_proj" module,
    /// The norm of queries or of their latent.
    QLayernorm "q_layernorm" module,
    /// The norm of keys.
    KLayernorm "k_layernorm" module,
    /// The norm of the latent of keys and values.
    KvLayernorm "kv_layernorm" module,
    /// From the latent to queries.
    LinearQUpProj "linear_q_up_proj" module,
    /// From the latent to keys and values.
    LinearKvUpProj "linear_kv_up_proj" module,
    /// To the latent of queries.
    LinearQ "linear_q" module,
    /// To rows of keys that are values too.
    LinearKv "linear_kv" module,
    /// From heads to the latents of groups of outputs.
    LinearODownProj "linear_o_down_proj" module,
    /// From those to the stream.
    LinearOUpProj "linear_o_up_proj" module,
    /// The sink of each head.
    Sinks "sinks" tensor,
    /// The same of attention to pooled entries.
    AttnSink "attn_sink" tensor,
    /// Queries of what picks.
    WqB "wq_b" module,
    /// Keys of what picks.
    Wk "wk" module,
    /// Their norm.
    KNorm "k_norm" module,
    /// Weights of the heads of what picks.
    WeightsProj "weights_proj" module,
    /// What is added to each place of a window.
    Ape "ape" tensor,
    /// Weights of what is pooled.
    Wgate "wgate" module,
    /// What is pooled.
    Wkv "wkv" module,
    /// The bias of step sizes.
    DtBias "dt_bias" tensor,
    /// The logarithm of decays.
    ALog "A_log" tensor,
    /// What goes past the recurrence.
    D "D" tensor,
    /// The projection into a recurrent mixer.
    InProj "in_proj" module,
    /// The convolution over tokens.
    Conv1d "conv1d" module,
    /// The projection out of a recurrent mixer.
    OutProj "out_proj" module,
    /// Queries, keys, values and gates of a delta net.
    InProjQkvz "in_proj_qkvz" module,
    /// Strengths and decays of a delta net.
    InProjBa "in_proj_ba" module,
    /// Added to keys.
    BBias "B_bias" tensor,
    /// Added to queries.
    CBias "C_bias" tensor,
    /// The norm of keys.
    BNorm "B_norm" module,
    /// The norm of queries.
    CNorm "C_norm" module,
    /// Out of the ranks of a mixer with several.
    MimoO "mimo_o" tensor,
    /// Into them, of inputs.
    MimoX "mimo_x" tensor,
    /// Into them, of gates.
    MimoZ "mimo_z" tensor,
    /// The first matrix of an MLP.
    LinearFc1 "linear_fc1" module,
    /// The second.
    LinearFc2 "linear_fc2" module,
    /// The gate of shared experts.
    GateWeight "gate_weight" tensor,
    /// Which experts a token goes to.
    Tid2Eid "tid2eid" tensor,
    /// What is added to experts' scores when they are chosen.
    ExpertBias "expert_bias" tensor,
    /// What is added to the weights of streams.
    HcBase "hc_base" tensor,
    /// From streams to their weights.
    HcFn "hc_fn" module,
    /// Factors of those weights.
    HcScale "hc_scale" tensor,
}

impl Role {
    /// Whether it is one of the matrices that Megatron calls linear layers, which have extra state in its files.
    pub const fn is_linear(self) -> bool {
        use Role as R;
        matches!(
            self,
            R::LinearQkv
                | R::LinearProj
                | R::LinearQUpProj
                | R::LinearKvUpProj
                | R::LinearQ
                | R::LinearKv
                | R::LinearODownProj
                | R::LinearOUpProj
                | R::LinearFc1
                | R::LinearFc2
        )
    }
}

/// A weight of a model: the part that holds it, what it does there, and where the part stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Layer, prediction module or end of the model.
    pub place: Place,
    /// The part of it.
    pub part: Part,
    /// Which of the two halves of a layer that has two of most parts.
    pub half: Option<usize>,
    /// What it does in the part.
    pub role: Role,
    /// Whether it is what a module adds.
    pub bias: bool,
}

impl Slot {
    /// The embedding table.
    pub const WORDS: Self = Self {
        place: Place::Embedding,
        part: Part::Embedding,
        half: None,
        role: Role::WordEmbeddings,
        bias: false,
    };

    /// Megatron-core's name, with layers counted over the whole model.
    pub fn name(&self) -> String {
        format!("{}{}", self.module_name(), self.ending())
    }

    /// The name of its module, or of the tensor itself if it is not part of a module.
    pub fn module_name(&self) -> String {
        let module = self.module(Role::word);
        match (self.place, self.part) {
            (Place::Layer(layer), _) => format!("decoder.layers.{layer}.{module}"),
            (Place::Mtp(k), Part::Last) => format!("mtp.final_layernorms.{k}"),
            (Place::Mtp(k), _) => format!("mtp.layers.{k}.{}{module}", self.inside_module()),
            (Place::Embedding | Place::Head, _) => module,
        }
    }

    /// What a prediction module calls its layer, in front of the names of that layer's weights; empty for others.
    pub const fn inside_module(&self) -> &'static str {
        match (self.place, self.part) {
            (Place::Mtp(_), Part::Prediction | Part::LastStreams | Part::Last) => "",
            (Place::Mtp(_), _) => "transformer_layer.",
            _ => "",
        }
    }

    /// The name inside its layer or prediction module's layer, as `mlp.linear_fc1.weight`; of others all of it.
    pub fn inner(&self) -> String {
        format!("{}{}", self.module(Role::word), self.ending())
    }

    /// The module's name inside its layer, with its role.
    pub fn module(&self, word: impl Fn(Role) -> &'static str) -> String {
        let (mut path, mut own) = (self.part.path().to_owned(), word(self.role).to_owned());
        if let Some(half) = self.half {
            // The number follows the first name component, which is a plural for MLPs.
            match (self.part, path.split_once('.')) {
                (Part::Layer, _) => own = format!("{own}_{half}"),
                (Part::Dense, _) => path = format!("mlps_{half}"),
                (_, None) => path = format!("{path}_{half}"),
                (_, Some((first, rest))) => path = format!("{first}_{half}.{rest}"),
            }
        }
        match (path.is_empty(), own.is_empty()) {
            (true, _) => own,
            (_, true) => path,
            _ => format!("{path}.{own}"),
        }
    }

    /// The suffix after the module name: `.weight` or `.bias`, or nothing for a standalone tensor.
    pub const fn ending(&self) -> &'static str {
        match (self.role.is_module(), self.bias) {
            (false, _) => "",
            (true, false) => ".weight",
            (true, true) => ".bias",
        }
    }

    /// Whether it is the embedding table or the output layer's weight, which can have their own learning rate.
    pub fn is_word_table(&self) -> bool {
        !self.bias && (self.is_embedding() || self.part == Part::Output)
    }

    /// Whether it is the embedding table.
    pub fn is_embedding(&self) -> bool {
        self.role == Role::WordEmbeddings
    }

    /// Whether it is this weight of its part, without its bias.
    pub fn is(&self, part: Part, role: Role) -> bool {
        (self.part, self.role, self.bias) == (part, role, false)
    }
}
