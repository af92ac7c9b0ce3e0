//! What is refused before it is compiled, and why.
//!
//! In this order: size, kind of file, structural limits, imports, validity,
//! encoding as a component, exports, types. Nothing of a refused plugin is kept.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use sha2::{Digest, Sha256};
use wasmparser::{Validator, WasmFeatures};
use wit_parser::{Resolve, WorldId};

use super::{
    contract,
    guest_error::escape,
    structure::{Counted, Structure, StructureError, WALK_STACK_BYTES},
};
use crate::base::ids::BlobDigest;

/// Names listed in a message.
const NAMES_LISTED_MAX: usize = 10;
/// Bytes of a name or of a cause in a message.
const TEXT_BYTES_MAX: usize = 300;
/// First bytes of every WebAssembly file.
const WASM_MAGIC: &[u8] = b"\0asm";
/// First bytes of an ELF file, as which compiled plugins are kept.
const ELF_MAGIC: &[u8] = b"\x7fELF";
/// Bytes of a page of memory.
const PAGE_BYTES: u64 = 64 << 10;

/// A plugin that may be compiled. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct AdmittedPlugin {
    pub(crate) name: String,
    pub(crate) component: Arc<[u8]>,
    listing: Arc<PluginListing>,
}

impl AdmittedPlugin {
    /// File name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// SHA-256 of the bytes that were submitted.
    pub fn digest(&self) -> BlobDigest {
        self.listing.digest
    }

    /// What the plugin is made of.
    pub fn listing(&self) -> &PluginListing {
        &self.listing
    }
}

/// In which form a plugin was submitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PluginForm {
    /// A core module with a type section, as `cargo build` makes it.
    CoreModule,
    /// A component.
    Component,
}

/// What a plugin is made of, for `engine inspect`.
#[derive(Clone, Debug)]
pub struct PluginListing {
    /// SHA-256 of the submitted bytes.
    pub digest: BlobDigest,
    /// Form of the submitted bytes.
    pub form: PluginForm,
    /// Number of submitted bytes.
    pub bytes: usize,
    /// Bytes of the component.
    pub component_bytes: usize,
    /// Version of the contract, for example "0.1.0".
    pub contract_version: &'static str,
    /// Version of the SDK, if the plugin says so.
    pub sdk_version: Option<String>,
    /// Interfaces it imports, with versions.
    pub imports: Vec<String>,
    /// Interfaces it exports, with versions.
    pub exports: Vec<String>,
    /// Number of functions.
    pub functions: u64,
    /// Bytes of their code.
    pub code_bytes: u64,
    /// Bytes of data segments.
    pub data_bytes: u64,
    /// Bytes of memory of a fresh instance.
    pub memory_bytes: u64,
    /// Tools it was made with, as "field: name version".
    pub producers: Vec<String>,
}

/// A plugin is refused.
#[derive(Debug, thiserror::Error)]
#[error("plugin {plugin} is refused: {refusal}")]
pub struct AdmissionError {
    /// File name.
    pub plugin: String,
    /// Why.
    pub refusal: Refusal,
}

impl AdmissionError {
    /// Stable code for scripts and REST.
    pub fn code(&self) -> &'static str {
        self.refusal.code()
    }
}

/// Why a plugin is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Larger than `plugin.bytes-max`.
    #[error("it has {bytes} bytes, at most {max} are allowed (plugin.bytes-max)")]
    TooLarge {
        /// As submitted.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Not a WebAssembly file, or not a whole one.
    #[error("it is not a WebAssembly component: {0}")]
    NotWasm(String),
    /// A core module that does not say which contract it follows.
    #[error(
        "not a plugin: built without engine-sdk; start from `engine new`, or add engine-sdk and #[engine_sdk::job]"
    )]
    NotAPlugin,
    /// A part is too large.
    #[error("it has {found} {}, at most {} are allowed", counted.name(), counted.max())]
    Limit {
        /// What is too large.
        counted: Counted,
        /// How large it is, as far as it was counted.
        found: u64,
    },
    /// Imports what no plugin may use.
    #[error(
        "it imports {0}, which plugins may not use; only interfaces of engine:plugin can be imported (a WASI target or a crate that needs the system brings such imports)"
    )]
    ForbiddenImports(Names),
    /// Built for another version of the contract.
    #[error(
        "it was built for {found}, this engine provides version {}: build it with engine-sdk {}",
        contract::VERSION,
        contract::VERSION
    )]
    ContractVersion {
        /// Interfaces with their versions.
        found: Names,
    },
    /// Does not export exactly what the contract says.
    #[error("its exports are not those of a plugin: {}", exports_problem(missing, unexpected))]
    Exports {
        /// Interfaces of the contract that it lacks.
        missing: Names,
        /// What it exports beyond the contract.
        unexpected: Names,
    },
    /// Functions or types differ from the contract.
    #[error(
        "its functions do not have the types of the contract engine:plugin {}: {cause}; it was built with another \
         version of the SDK: build it anew with `engine build`",
        contract::VERSION
    )]
    ContractTypes {
        /// What differs.
        cause: String,
    },
    /// Not valid WebAssembly, or it uses a feature that plugins may not use.
    #[error("it is not valid: {0}")]
    Invalid(String),
    /// The check itself could not be run.
    #[error("could not check it: {0}")]
    NotChecked(String),
}

impl Refusal {
    /// Stable code for scripts and REST.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "too-large",
            Self::NotWasm(_) => "not-a-component",
            Self::NotAPlugin => "not-a-plugin",
            Self::Limit { .. } => "structure-limit",
            Self::ForbiddenImports(_) => "forbidden-import",
            Self::ContractVersion { .. } => "contract-version",
            Self::Exports { .. } => "exports",
            Self::ContractTypes { .. } => "contract-types",
            Self::Invalid(_) => "invalid",
            Self::NotChecked(_) => "not-checked",
        }
    }
}

/// Names of a plugin, made fit for a message when they are shown.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Names(pub Vec<String>);

impl fmt::Display for Names {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().take(NAMES_LISTED_MAX).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(formatter, "{separator}{}", escape(name, TEXT_BYTES_MAX))?;
        }
        match self.0.len().checked_sub(NAMES_LISTED_MAX) {
            Some(more) if more > 0 => write!(formatter, " and {more} more"),
            _ => Ok(()),
        }
    }
}

fn exports_problem(missing: &Names, unexpected: &Names) -> String {
    match (missing.0.is_empty(), unexpected.0.is_empty()) {
        (true, _) => format!("{unexpected} must not be exported"),
        (false, true) => format!("{missing} is missing; is #[engine_sdk::job] there?"),
        (false, false) => format!("{missing} is missing and {unexpected} must not be exported"),
    }
}

impl From<StructureError> for Refusal {
    fn from(error: StructureError) -> Self {
        match error {
            StructureError::Malformed(error) => Self::NotWasm(cause(&error)),
            StructureError::Limit { counted, found } => Self::Limit { counted, found },
        }
    }
}

/// Checks plugins.
#[derive(Debug)]
pub(crate) struct Admission {
    bytes_max: usize,
    contract: OnceLock<Contract>,
}

/// The contract in the form in which plugins are compared with it.
#[derive(Debug)]
struct Contract {
    resolve: Resolve,
    world: WorldId,
}

impl Contract {
    fn read() -> Self {
        let mut resolve = Resolve::default();
        let package = resolve.push_source("plugin.wit", contract::WIT).expect("the contract is valid WIT");
        let world = resolve.select_world(&[package], Some(contract::WORLD)).expect("the contract has a world");
        Self { resolve, world }
    }
}

impl Admission {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, contract: OnceLock::new() }
    }

    /// Refuses what is too large to be looked at.
    pub(crate) fn check_size(&self, bytes: &[u8], name: &str) -> Result<(), AdmissionError> {
        if bytes.len() <= self.bytes_max {
            return Ok(());
        }
        Err(refused(name, Refusal::TooLarge { bytes: bytes.len(), max: self.bytes_max }))
    }

    /// Admits or refuses a plugin.
    ///
    /// Runs on a thread of its own: hostile bytes can make readers recurse, and a
    /// panic of theirs must not reach the caller.
    pub(crate) fn admit(self: &Arc<Self>, bytes: &[u8], name: &str) -> Result<AdmittedPlugin, AdmissionError> {
        self.check_size(bytes, name)?;
        let checked = std::thread::scope(|scope| {
            let check = std::thread::Builder::new()
                .name("plugin-admission".into())
                .stack_size(WALK_STACK_BYTES)
                .spawn_scoped(scope, || self.check(bytes))
                .map_err(|error| Refusal::NotChecked(error.to_string()))?;
            check.join().unwrap_or_else(|_| Err(Refusal::NotChecked("a reader of WebAssembly panicked".into())))
        });
        let (component, listing) = checked.map_err(|refusal| refused(name, refusal))?;
        Ok(AdmittedPlugin { name: shown_name(name), component: component.into(), listing: Arc::new(listing) })
    }

    fn check(&self, bytes: &[u8]) -> Result<(Vec<u8>, PluginListing), Refusal> {
        if bytes.starts_with(ELF_MAGIC) {
            return Err(Refusal::NotWasm("it is compiled already; submit the .wasm file".into()));
        }
        if !bytes.starts_with(WASM_MAGIC) {
            return Err(Refusal::NotWasm("the first bytes are not those of a .wasm file".into()));
        }
        let submitted = Structure::walk(bytes)?;
        check_imports(&submitted)?;
        let mut validator = Validator::new_with_features(features());
        validator.validate_all(bytes).map_err(|error| Refusal::Invalid(cause(&error)))?;
        let (component, structure, form) = if submitted.is_component {
            (bytes.to_vec(), submitted, PluginForm::Component)
        } else {
            if !submitted.has_component_type {
                return Err(Refusal::NotAPlugin);
            }
            let component = encode(bytes)?;
            let mut structure = Structure::walk(&component)?;
            check_imports(&structure)?;
            structure.sdk_version = submitted.sdk_version;
            (component, structure, PluginForm::CoreModule)
        };
        check_exports(&structure)?;
        let contract = self.contract.get_or_init(Contract::read);
        wit_component::targets(&contract.resolve, contract.world, &component)
            .map_err(|error| Refusal::ContractTypes { cause: in_a_line(&error.root_cause().to_string()) })?;
        let listing = PluginListing {
            digest: digest(bytes),
            form,
            bytes: bytes.len(),
            component_bytes: component.len(),
            contract_version: contract::VERSION,
            sdk_version: structure.sdk_version,
            imports: structure.imports,
            exports: structure.exports,
            functions: structure.functions,
            code_bytes: structure.code_bytes,
            data_bytes: structure.data_bytes,
            memory_bytes: structure.memory_pages.saturating_mul(PAGE_BYTES),
            producers: structure.producers,
        };
        Ok((component, listing))
    }
}

/// What a plugin is known by: SHA-256 of the bytes that were submitted.
pub(crate) fn digest(bytes: &[u8]) -> BlobDigest {
    BlobDigest::from_bytes(Sha256::digest(bytes).into())
}

/// A file name, fit for messages.
pub(crate) fn shown_name(name: &str) -> String {
    escape(name, TEXT_BYTES_MAX)
}

fn refused(name: &str, refusal: Refusal) -> AdmissionError {
    AdmissionError { plugin: shown_name(name), refusal }
}

/// What plugins may use of WebAssembly; [`super::runtime`] configures the compiler alike.
pub(crate) fn features() -> WasmFeatures {
    WasmFeatures::MUTABLE_GLOBAL
        | WasmFeatures::SATURATING_FLOAT_TO_INT
        | WasmFeatures::SIGN_EXTENSION
        | WasmFeatures::REFERENCE_TYPES
        | WasmFeatures::MULTI_VALUE
        | WasmFeatures::BULK_MEMORY
        | WasmFeatures::SIMD
        | WasmFeatures::TAIL_CALL
        | WasmFeatures::FLOATS
        | WasmFeatures::MULTI_MEMORY
        | WasmFeatures::EXTENDED_CONST
        | WasmFeatures::COMPONENT_MODEL
}

/// The lines of a message one behind the other, without the places in the file that end it.
fn in_a_line(text: &str) -> String {
    let text = text.rsplit_once("(at offset").map_or(text, |(text, _)| text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    escape(&lines.join(": "), TEXT_BYTES_MAX)
}

fn encode(module: &[u8]) -> Result<Vec<u8>, Refusal> {
    wit_component::ComponentEncoder::default()
        .module(module)
        .and_then(|encoder| encoder.validate(false).encode())
        .map_err(|error| Refusal::ContractTypes { cause: in_a_line(&format!("{error:#}")) })
}

/// Imports are allowed by full name and version.
fn check_imports(structure: &Structure) -> Result<(), Refusal> {
    let refused = structure.imports.iter().filter(|import| !contract::IMPORTS.contains(&import.as_str()));
    let (other_versions, forbidden): (Vec<_>, Vec<_>) = refused.cloned().partition(|import| is_of_contract(import));
    if !forbidden.is_empty() {
        return Err(Refusal::ForbiddenImports(Names(forbidden)));
    }
    if !other_versions.is_empty() {
        return Err(Refusal::ContractVersion { found: Names(other_versions) });
    }
    Ok(())
}

fn check_exports(structure: &Structure) -> Result<(), Refusal> {
    let lacks = |name: &&str| !structure.exports.iter().any(|export| export == name);
    let missing: Vec<String> = contract::EXPORTS.iter().copied().filter(lacks).map(str::to_owned).collect();
    let unexpected: Vec<String> =
        structure.exports.iter().filter(|export| !contract::EXPORTS.contains(&export.as_str())).cloned().collect();
    if missing.is_empty() && unexpected.is_empty() {
        return Ok(());
    }
    if !unexpected.is_empty() && unexpected.iter().all(|export| is_of_contract(export)) {
        return Err(Refusal::ContractVersion { found: Names(unexpected) });
    }
    Err(Refusal::Exports { missing: Names(missing), unexpected: Names(unexpected) })
}

/// True for an interface of the contract that differs in its version only.
fn is_of_contract(name: &str) -> bool {
    let (path, version) = name.split_once('@').unwrap_or((name, ""));
    let is_version = version.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+".contains(&byte));
    is_version
        && contract::IMPORTS
            .iter()
            .chain(&contract::EXPORTS)
            .any(|known| known.split_once('@').is_some_and(|(known, _)| known == path))
}

fn cause(error: &wasmparser::BinaryReaderError) -> String {
    escape(&format!("{} (at byte {})", error.message(), error.offset()), TEXT_BYTES_MAX)
}
