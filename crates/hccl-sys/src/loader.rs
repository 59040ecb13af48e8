//! Finding and opening the libraries.

use crate::tables::{
    acl::Acl, acl_model::AclModel, acl_rt::AclRuntime, compiler::AclCompiler, dump::AclDump, hccl::Hccl,
    meta::NnMeta, ops_attention::OpsAttention, ops_cv::OpsCv, ops_experts::OpsExperts, ops_math::OpsMath,
    ops_nn::OpsNn, ops_products::OpsProducts, prof::AclProf, tdt::AclTdt,
};
use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};

/// Where to look: the variables that a toolkit's `set_env.sh` sets, as values.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// `ASCEND_HOME_PATH`
    pub home: Option<PathBuf>,
    /// `ASCEND_OPP_PATH`
    pub opp: Option<PathBuf>,
    /// `ASCEND_CUSTOM_OPP_PATH`, cut at colons
    pub custom: Vec<PathBuf>,
    /// Prefixes to try when no variable helps.
    pub prefixes: Vec<PathBuf>,
}

impl Search {
    /// From variables, by a function that reads them, and the toolkit's default prefixes.
    pub fn from_variables(read: impl Fn(&str) -> Option<String>) -> Search {
        Search {
            home: read("ASCEND_HOME_PATH").or_else(|| read("ASCEND_TOOLKIT_HOME")).map(PathBuf::from),
            opp: read("ASCEND_OPP_PATH").map(PathBuf::from),
            custom: read("ASCEND_CUSTOM_OPP_PATH")
                .map(|v| v.split(':').filter(|p| !p.is_empty()).map(PathBuf::from).collect())
                .unwrap_or_default(),
            prefixes: installed(Path::new("/usr/local/Ascend")),
        }
    }
}

/// Where toolkits are installed in `root`: 9.x in `cann`, or `cann-VERSION`, of which the newest comes first, a release before
/// what went before it (`8.5.0.alpha002`); 8.1 in `ascend-toolkit/latest`.
fn installed(root: &Path) -> Vec<PathBuf> {
    let numbers = |version: &str| {
        let release = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
        let [of_release, behind] = [&version[..release], &version[release..]].map(|part| -> Vec<u64> {
            part.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
        });
        (of_release, release == version.len(), behind)
    };
    let names = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok());
    let mut versions: Vec<_> =
        names.filter_map(|name| Some((numbers(name.strip_prefix("cann-")?), name))).collect();
    versions.sort();
    let versions = versions.into_iter().rev().map(|(_, name)| name);
    let all = ["cann".to_owned()].into_iter().chain(versions).chain(["ascend-toolkit/latest".to_owned()]);
    all.map(|name| root.join(name)).collect()
}

/// What became of one library.
#[derive(Clone, Debug)]
pub struct LibraryReport {
    /// `libascendcl.so`
    pub name: String,
    /// The path that was opened.
    pub opened: Option<PathBuf>,
    /// Every path that was tried, with the linker's message where it failed.
    pub tried: Vec<(PathBuf, String)>,
}

/// What was found and what was not.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Libraries in the order of the search.
    pub libraries: Vec<LibraryReport>,
    /// Symbols that no library has.
    pub missing: Vec<String>,
    /// How many were found.
    pub found: usize,
}

/// No toolkit: which libraries were looked for, and where.
#[derive(Clone, Debug)]
pub struct LoadError {
    /// What was tried.
    pub report: Report,
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no CANN runtime library; tried")?;
        for library in self
            .report
            .libraries
            .iter()
            .filter(|l| l.name.starts_with("libasc") || l.name.starts_with("libacl_rt"))
        {
            for (path, why) in &library.tried {
                write!(f, "\n  {}: {why}", path.display())?;
            }
        }
        write!(f, "\nhint: source the toolkit's set_env.sh, or set ASCEND_HOME_PATH")
    }
}
impl std::error::Error for LoadError {}

/// The tables of an opened toolkit: of functions, and of operators.
macro_rules! cann {
    (functions { $($(#[$doc:meta])* $function:ident: $functions:ty,)* }
     operators { $($(#[$of:meta])* $operator:ident: $operators:ty,)* }) => {
        /// All tables.
        #[derive(Debug)]
        pub struct Cann {
            $($(#[$doc])* pub $function: $functions,)*
            $($(#[$of])* pub $operator: $operators,)*
            /// What was found.
            pub report: Report,
        }

        impl Cann {
            /// Looks everything up in opened libraries.
            fn fill(mut found: Libraries, mut report: Report) -> Cann {
                let mut cann = Cann {
                    $($function: <$functions>::fill(&mut |name| found.function(name)),)*
                    $($operator: <$operators>::fill(&mut |first, second| found.operator(first, second)),)*
                    report: Report::default(),
                };
                // Functions that end in `Impl` are the libraries' own: they are not reported as missing.
                found.missing.retain(|n| !n.ends_with("Impl"));
                (report.missing, report.found) = (found.missing, found.count);
                cann.report = report;
                cann
            }

            /// Every declaration.
            pub(crate) fn dump(out: &mut Vec<crate::Declaration>) {
                $(<$functions>::dump(out);)*
                $(<$operators>::dump(out);)*
            }
        }
    };
}
cann! {
    functions {
        /// Process, versions, descriptions.
        acl: Acl,
        /// Devices, streams, events, memory.
        rt: AclRuntime,
        /// Models and operators by type name.
        model: AclModel,
        /// Options of the compiler of operators.
        compiler: AclCompiler,
        /// Data channels.
        tdt: AclTdt,
        /// Dumps.
        dump: AclDump,
        /// Objects of the operator library.
        meta: NnMeta,
        /// Collectives.
        hccl: Hccl,
        /// Profiling.
        prof: AclProf,
    }
    operators {
        /// Arithmetic, reductions, shapes.
        math: OpsMath,
        /// Norms, activations, losses, optimizers, recurrent cells, indices.
        nn: OpsNn,
        /// Matrix products, convolutions, quantisation.
        products: OpsProducts,
        /// Attention, positions, caches, recurrences.
        attention: OpsAttention,
        /// Experts, their exchanges, products fused with communication.
        experts: OpsExperts,
        /// Images.
        cv: OpsCv,
    }
}

/// Opened libraries in the order in which symbols are looked up, and what was found in them.
struct Libraries {
    runtime: Vec<Handle>,
    operators: Vec<Handle>,
    missing: Vec<String>,
    count: usize,
}

impl Libraries {
    /// Counts what was found, or notes that no library has `name`.
    fn note<T: Default>(&mut self, name: &CStr, found: Option<T>) -> T {
        match found {
            Some(_) => self.count += 1,
            None => self.missing.push(name.to_string_lossy().into_owned()),
        }
        found.unwrap_or_default()
    }

    fn function(&mut self, name: &CStr) -> usize {
        let mut all = self.runtime.iter().chain(&self.operators);
        let found = all.find_map(|l| Some(l.symbol(name)).filter(|address| *address != 0));
        self.note(name, found)
    }

    /// Both phases of one operator come from one library.
    fn operator(&mut self, first: &CStr, second: &CStr) -> (usize, usize) {
        let mut pairs = self.operators.iter().map(|l| (l.symbol(first), l.symbol(second)));
        let found = pairs.find(|(first, second)| *first != 0 && *second != 0);
        self.note(second, found)
    }
}

struct Handle(*mut c_void);

/// Libraries in the order in which symbols are looked up; operator libraries have an order of their own.
const RUNTIME: [&str; 9] = [
    "libacl_rt.so",
    "libascendcl.so",
    "libnnopbase.so",
    "libhcomm.so",
    "libhccl.so",
    "libmsprofiler.so",
    "libacl_op_compiler.so",
    "libascend_dump.so",
    "libacl_tdt_channel.so",
];
const OPERATORS: [&str; 11] = [
    "libopapi_math.so",
    "libopapi_nn.so",
    "libopapi_cv.so",
    "libopapi_transformer.so",
    "libopapi_oam.so",
    "libopapi_legacy.so",
    "libopapi.so",
    "libaclnn_math.so",
    "libaclnn_ops_infer.so",
    "libaclnn_ops_train.so",
    "libaclnn_rand.so",
];

fn open(path: &Path) -> Result<Handle, String> {
    let text = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: a C string; the library's own initialisers run, as with any program that links it. It is never closed.
    let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_LAZY | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(Handle(handle));
    }
    // SAFETY: after a failure the linker gives a C string or null.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return Err("unknown error".to_owned());
    }
    // SAFETY: not null.
    Err(unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned())
}

impl Handle {
    fn symbol(&self, name: &CStr) -> usize {
        // SAFETY: the handle is open, and the name is a C string.
        unsafe { libc::dlsym(self.0, name.as_ptr()) as usize }
    }
}

/// Custom operator libraries by the order of the public clients: named folders first, then vendors by their priority.
fn custom(search: &Search) -> Vec<PathBuf> {
    let library = Path::new("op_api/lib/libcust_opapi.so");
    let mut out: Vec<PathBuf> = search.custom.iter().map(|d| d.join(library)).collect();
    if let Some(opp) = &search.opp {
        let vendors = opp.join("vendors");
        let config = std::fs::read_to_string(vendors.join("config.ini")).unwrap_or_default();
        let order = config.lines().find_map(|l| l.trim().strip_prefix("load_priority=")).unwrap_or_default();
        out.extend(
            order.split(',').map(str::trim).filter(|v| !v.is_empty()).map(|v| vendors.join(v).join(library)),
        );
    }
    out.retain(|p| p.exists());
    out
}

fn find(name: &str, search: &Search, report: &mut Report) -> Option<Handle> {
    let mut places: Vec<PathBuf> = Vec::new();
    if let Some(home) = &search.home {
        places.push(home.join("lib64").join(name));
    }
    places.push(PathBuf::from(name));
    places.extend(search.prefixes.iter().map(|p| p.join("lib64").join(name)));
    let mut entry = LibraryReport { name: name.to_owned(), opened: None, tried: Vec::new() };
    let mut handle = None;
    for place in places {
        match open(&place) {
            Ok(h) => {
                entry.opened = Some(place);
                handle = Some(h);
                break;
            }
            Err(why) => entry.tried.push((place, why)),
        }
    }
    report.libraries.push(entry);
    handle
}

impl Cann {
    /// Opens what is there. Libraries are never closed again.
    ///
    /// # Errors
    /// When neither runtime library can be opened; the error names every path tried and the linker's message.
    pub fn open(search: &Search) -> Result<Cann, LoadError> {
        let mut report = Report::default();
        let mut runtime = Vec::new();
        for name in RUNTIME {
            runtime.extend(find(name, search, &mut report));
        }
        let has_runtime = report.libraries.iter().take(2).any(|l| l.opened.is_some());
        if !has_runtime {
            return Err(LoadError { report });
        }
        let mut operators = Vec::new();
        for path in custom(search) {
            let name = path.display().to_string();
            let (opened, tried) = match open(&path) {
                Ok(library) => {
                    operators.push(library);
                    (Some(path), Vec::new())
                }
                Err(why) => (None, vec![(path, why)]),
            };
            report.libraries.push(LibraryReport { name, opened, tried });
        }
        for name in OPERATORS {
            operators.extend(find(name, search, &mut report));
        }
        Ok(Cann::fill(Libraries { runtime, operators, missing: Vec::new(), count: 0 }, report))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolkits_are_looked_for_where_they_are_installed_the_newest_first() {
        let root = tempfile::tempdir().unwrap();
        let relative = || -> Vec<String> {
            let all = installed(root.path());
            all.iter().map(|p| p.strip_prefix(root.path()).unwrap().display().to_string()).collect()
        };
        assert_eq!(relative(), ["cann", "ascend-toolkit/latest"]);
        for name in
            ["cann-9.0.0", "cann-9.0.0.alpha002", "cann-8.5.0", "cann-10.0.0-beta.1", "driver", "cann"]
        {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        let versions = ["cann-10.0.0-beta.1", "cann-9.0.0", "cann-9.0.0.alpha002", "cann-8.5.0"];
        assert_eq!(relative(), [&["cann"][..], &versions, &["ascend-toolkit/latest"]].concat());
    }
}
