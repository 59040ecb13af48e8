//! The older form of a model: a pickled NLTK tokenizer from before 3.8.2, protocols 0 to 3.

use super::trained::{Context, Trained};
use ms_files::pickle::{Allowed, Id, Obj, Pickle};

type Result<T> = std::result::Result<T, String>;

/// Sets are calls with one list; objects hold their fields in what they were built with.
const ALLOWED: Allowed = Allowed {
    calls: &[
        "nltk.tokenize.punkt.PunktSentenceTokenizer",
        "nltk.tokenize.punkt.PunktToken",
        "nltk.tokenize.punkt.PunktLanguageVars",
        "nltk.tokenize.punkt.PunktParameters",
        "builtins.set",
        "__builtin__.set",
        "collections.defaultdict",
        "copy_reg._reconstructor",
        "copyreg._reconstructor",
    ],
    prefixes: &[],
    hint: "",
    protocols: (0, 3),
};

/// Most bytes of a word: a pickle may name the same one in many pairs.
const LONGEST: usize = 256;

/// The model in a pickle's bytes.
pub(super) fn read(bytes: &[u8]) -> Result<Trained> {
    let pickle =
        ms_files::pickle::read(bytes, &ALLOWED).map_err(|(at, what)| format!("byte {at}: {what}"))?;
    Reader(&pickle).trained()
}

struct Reader<'a>(&'a Pickle);

impl Reader<'_> {
    /// The parameters of the tokenizer that the pickle holds.
    fn trained(&self) -> Result<Trained> {
        let parameters = self.field(self.0.root, "_params")?;
        let mut trained = Trained::default();
        for &item in self.items(self.field(parameters, "collocations")?)? {
            let [first, second] = *self.items(item)? else {
                return Err("a collocation of other than two words".into());
            };
            trained.together.entry(self.text(first)?.into()).or_default().insert(self.text(second)?.into());
        }
        for (name, words) in
            [("sent_starters", &mut trained.starters), ("abbrev_types", &mut trained.abbreviations)]
        {
            for &word in self.items(self.field(parameters, name)?)? {
                words.insert(self.text(word)?.into());
            }
        }
        let Obj::Dict(pairs) = self.object(self.field(parameters, "ortho_context")?) else {
            return Err("ortho_context is not a dictionary".into());
        };
        for &(word, bits) in pairs {
            let Obj::Int(bits) = self.object(bits) else {
                return Err("a context that is not a number".into());
            };
            trained.contexts.insert(self.text(word)?.into(), Context(*bits));
        }
        Ok(trained)
    }

    fn object(&self, id: Id) -> &Obj {
        &self.0.objects[id]
    }

    /// A field of an object's state.
    fn field(&self, object: Id, name: &str) -> Result<Id> {
        let state = match self.object(object) {
            Obj::Call { state: Some(state), .. } => self.object(*state),
            _ => &Obj::None,
        };
        let Obj::Dict(pairs) = state else { return Err(format!("no object with a field {name}")) };
        let found = pairs.iter().rfind(|(key, _)| matches!(self.object(*key), Obj::Str(key) if *key == name));
        found.map(|&(_, value)| value).ok_or_else(|| format!("no field {name}"))
    }

    /// What is in a list, a tuple or a set.
    fn items(&self, id: Id) -> Result<&[Id]> {
        match self.object(id) {
            Obj::List(items) | Obj::Tuple(items) => Ok(items),
            Obj::Call { function, args, .. } if function.ends_with(".set") => match args[..] {
                [list] => match self.object(list) {
                    Obj::List(items) | Obj::Tuple(items) => Ok(items),
                    _ => Err("a set of other than one list".into()),
                },
                _ => Err("a set of other than one list".into()),
            },
            _ => Err("expected a list of values".into()),
        }
    }

    fn text(&self, id: Id) -> Result<&str> {
        match self.object(id) {
            Obj::Str(text) if text.len() <= LONGEST => Ok(text),
            Obj::Str(text) => Err(format!("a word of {} bytes, expected at most {LONGEST}", text.len())),
            _ => Err("expected a text".into()),
        }
    }
}
