//! Structural limits: how large the parts of a plugin may be.
//!
//! The walk reads sizes and names and validates nothing. It comes before every
//! other look at the bytes, because validation, encoding and compilation are
//! made for inputs of a sane shape: wasmparser's own limits are those of browsers.

use wasmparser::{
    BinaryReaderError, ComponentDefinedType, ComponentType, ComponentTypeDeclaration, Encoding, FunctionBody, Instance,
    InstanceTypeDeclaration, Parser, Payload,
};

use super::limits::{INSTANCES_MAX, MEMORIES_MAX, TABLES_MAX};

/// A part of a plugin that is counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Counted {
    /// Functions of all modules.
    Functions,
    /// Bytes of one function.
    FunctionBytes,
    /// Locals of one function.
    Locals,
    /// Core and component types.
    Types,
    /// Fields, cases, flags or parameters of one type.
    TypeMembers,
    /// Bytes of one section of component types, which bounds how deep they nest.
    TypeSectionBytes,
    /// Depth of modules in components, and of types in types.
    Nesting,
    /// Modules and components within the plugin.
    Modules,
    /// Instances of modules that instantiation makes.
    Instances,
    /// All entries of instance, alias, canonical, import, export, global and element sections.
    Definitions,
    /// Memories of all modules.
    Memories,
    /// Tables of all modules.
    Tables,
    /// Bytes of data segments of all modules.
    DataBytes,
    /// Bytes of the name of an import or export.
    NameBytes,
}

impl Counted {
    /// The limit.
    pub fn max(self) -> u64 {
        match self {
            Self::Functions => 50_000,
            Self::FunctionBytes => 1 << 20,
            Self::Locals => 5_000,
            Self::Types => 10_000,
            Self::TypeMembers => 1_000,
            Self::TypeSectionBytes => 64 << 10,
            Self::Nesting => 8,
            Self::Modules => 32,
            Self::Instances => INSTANCES_MAX as u64,
            Self::Definitions => 100_000,
            Self::Memories => MEMORIES_MAX as u64,
            Self::Tables => TABLES_MAX as u64,
            Self::DataBytes => 8 << 20,
            Self::NameBytes => 256,
        }
    }

    /// What is counted, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Functions => "functions",
            Self::FunctionBytes => "bytes of one function",
            Self::Locals => "locals of one function",
            Self::Types => "types",
            Self::TypeMembers => "members of one type",
            Self::TypeSectionBytes => "bytes of one type section",
            Self::Nesting => "levels of nesting",
            Self::Modules => "modules and components",
            Self::Instances => "instances",
            Self::Definitions => "definitions",
            Self::Memories => "memories",
            Self::Tables => "tables",
            Self::DataBytes => "bytes of data",
            Self::NameBytes => "bytes of a name",
        }
    }
}

/// Why the walk ended early.
#[derive(Debug)]
pub(crate) enum StructureError {
    /// The bytes are not WebAssembly.
    Malformed(BinaryReaderError),
    /// A part is too large.
    Limit { counted: Counted, found: u64 },
}

impl From<BinaryReaderError> for StructureError {
    fn from(error: BinaryReaderError) -> Self {
        Self::Malformed(error)
    }
}

/// What the walk found out.
#[derive(Debug, Default)]
pub(crate) struct Structure {
    pub(crate) is_component: bool,
    /// Imports of a component, or the modules that a core module imports from.
    pub(crate) imports: Vec<String>,
    /// Exports of a component or of a core module.
    pub(crate) exports: Vec<String>,
    /// True for a core module that carries a `component-type` section.
    pub(crate) has_component_type: bool,
    pub(crate) functions: u64,
    pub(crate) code_bytes: u64,
    pub(crate) data_bytes: u64,
    /// Pages of all memories at the start.
    pub(crate) memory_pages: u64,
    /// Entries of the producers sections, as "field: name version".
    pub(crate) producers: Vec<String>,
    /// Contents of the `engine-sdk` section: the version of the SDK.
    pub(crate) sdk_version: Option<String>,
    types: u64,
    modules: u64,
    instances: u64,
    definitions: u64,
    memories: u64,
    tables: u64,
}

/// Name of the custom section in which the SDK leaves its version.
const SDK_SECTION: &str = "engine-sdk";
/// Prefix of the custom sections that say what a core module's functions mean.
const COMPONENT_TYPE_SECTION: &str = "component-type";
/// Entries of producers sections that are kept.
const PRODUCERS_MAX: usize = 32;

/// Stack that the walk may need: types nest at most as deep as a type section has bytes.
pub(crate) const WALK_STACK_BYTES: usize = 128 << 20;

impl Structure {
    /// Walks over a module or component. Wants [`WALK_STACK_BYTES`] of stack.
    pub(crate) fn walk(bytes: &[u8]) -> Result<Self, StructureError> {
        let mut structure = Self::default();
        structure.walk_into(bytes, 0)?;
        Ok(structure)
    }

    /// `depth` is 0 for the plugin itself, whose imports and exports are kept.
    fn walk_into(&mut self, bytes: &[u8], outer_depth: u64) -> Result<(), StructureError> {
        let mut depth = outer_depth;
        for payload in Parser::new(0).parse_all(bytes) {
            match payload? {
                Payload::Version { encoding, .. } => {
                    check(Counted::Nesting, depth)?;
                    if depth == 0 {
                        self.is_component = encoding == Encoding::Component;
                    }
                }
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                    depth += 1;
                    self.modules += 1;
                    check(Counted::Modules, self.modules)?;
                }
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::TypeSection(section) => self.add_types(section.count())?,
                Payload::CoreTypeSection(section) => {
                    check_length(Counted::TypeSectionBytes, section.range().len())?;
                    self.add_types(section.count())?;
                }
                Payload::ComponentTypeSection(section) => {
                    check_length(Counted::TypeSectionBytes, section.range().len())?;
                    self.add_types(section.count())?;
                    for component_type in section {
                        self.component_type(&component_type?, depth)?;
                    }
                }
                Payload::FunctionSection(section) => {
                    self.functions += u64::from(section.count());
                    check(Counted::Functions, self.functions)?;
                }
                Payload::CodeSectionEntry(body) => self.function(&body)?,
                Payload::MemorySection(section) => {
                    self.memories += u64::from(section.count());
                    check(Counted::Memories, self.memories)?;
                    for memory in section {
                        self.memory_pages = self.memory_pages.saturating_add(memory?.initial);
                    }
                }
                Payload::TableSection(section) => {
                    self.tables += u64::from(section.count());
                    check(Counted::Tables, self.tables)?;
                }
                Payload::DataSection(section) => {
                    self.data_bytes += section.range().len() as u64;
                    check(Counted::DataBytes, self.data_bytes)?;
                    self.add_definitions(section.count())?;
                }
                Payload::ImportSection(section) => {
                    self.add_definitions(section.count())?;
                    for import in section.into_imports() {
                        let import = import?;
                        self.name(import.module)?;
                        self.name(import.name)?;
                        if depth == 0 && !self.imports.iter().any(|known| known == import.module) {
                            self.imports.push(import.module.to_owned());
                        }
                    }
                }
                Payload::ExportSection(section) => {
                    self.add_definitions(section.count())?;
                    for export in section {
                        let export = export?;
                        self.name(export.name)?;
                        if depth == 0 {
                            self.exports.push(export.name.to_owned());
                        }
                    }
                }
                Payload::ComponentImportSection(section) => {
                    self.add_definitions(section.count())?;
                    for import in section {
                        let import = import?;
                        self.name(import.name.name)?;
                        if depth == 0 {
                            self.imports.push(import.name.name.to_owned());
                        }
                    }
                }
                Payload::ComponentExportSection(section) => {
                    self.add_definitions(section.count())?;
                    for export in section {
                        let export = export?;
                        self.name(export.name.name)?;
                        if depth == 0 {
                            self.exports.push(export.name.name.to_owned());
                        }
                    }
                }
                Payload::InstanceSection(section) => {
                    self.add_definitions(section.count())?;
                    for instance in section {
                        match instance? {
                            Instance::Instantiate { .. } => self.instances += 1,
                            // A bundle of names: nothing is made at run time.
                            Instance::FromExports(exports) => {
                                check_length(Counted::TypeMembers, exports.len())?;
                            }
                        }
                        check(Counted::Instances, self.instances)?;
                    }
                }
                Payload::ComponentInstanceSection(section) => self.add_definitions(section.count())?,
                Payload::ComponentAliasSection(section) => self.add_definitions(section.count())?,
                Payload::ComponentCanonicalSection(section) => self.add_definitions(section.count())?,
                Payload::GlobalSection(section) => self.add_definitions(section.count())?,
                Payload::ElementSection(section) => self.add_definitions(section.count())?,
                Payload::TagSection(section) => self.add_definitions(section.count())?,
                Payload::CustomSection(section) => self.custom_section(&section, depth)?,
                Payload::StartSection { .. }
                | Payload::DataCountSection { .. }
                | Payload::CodeSectionStart { .. }
                | Payload::ComponentStartSection { .. }
                | Payload::UnknownSection { .. } => {}
                // Kinds of sections that the parser learns of later: validation decides over them.
                _ => {}
            }
        }
        Ok(())
    }

    fn function(&mut self, body: &FunctionBody<'_>) -> Result<(), StructureError> {
        let length = body.range().len();
        check_length(Counted::FunctionBytes, length)?;
        self.code_bytes += length as u64;
        let mut locals = 0_u64;
        for group in body.get_locals_reader()? {
            locals = locals.saturating_add(u64::from(group?.0));
            check(Counted::Locals, locals)?;
        }
        Ok(())
    }

    fn component_type(&mut self, component_type: &ComponentType<'_>, depth: u64) -> Result<(), StructureError> {
        check(Counted::Nesting, depth)?;
        match component_type {
            ComponentType::Defined(defined) => match defined {
                ComponentDefinedType::Record(fields) => check_length(Counted::TypeMembers, fields.len()),
                ComponentDefinedType::Variant(cases) => check_length(Counted::TypeMembers, cases.len()),
                ComponentDefinedType::Tuple(types) => check_length(Counted::TypeMembers, types.len()),
                ComponentDefinedType::Flags(names) | ComponentDefinedType::Enum(names) => {
                    check_length(Counted::TypeMembers, names.len())
                }
                ComponentDefinedType::FixedLengthList(_, length) => check(Counted::TypeMembers, u64::from(*length)),
                ComponentDefinedType::Primitive(_)
                | ComponentDefinedType::List(_)
                | ComponentDefinedType::Map(..)
                | ComponentDefinedType::Option(_)
                | ComponentDefinedType::Result { .. }
                | ComponentDefinedType::Own(_)
                | ComponentDefinedType::Borrow(_)
                | ComponentDefinedType::Future(_)
                | ComponentDefinedType::Stream(_) => Ok(()),
            },
            ComponentType::Func(function) => check_length(Counted::TypeMembers, function.params.len()),
            ComponentType::Component(declarations) => {
                self.add_types(u32::try_from(declarations.len()).unwrap_or(u32::MAX))?;
                declarations.iter().try_for_each(|declaration| match declaration {
                    ComponentTypeDeclaration::Type(inner) => self.component_type(inner, depth + 1),
                    ComponentTypeDeclaration::Import(import) => self.name(import.name.name),
                    ComponentTypeDeclaration::Export { name, .. } => self.name(name.name),
                    ComponentTypeDeclaration::CoreType(_) | ComponentTypeDeclaration::Alias(_) => Ok(()),
                })
            }
            ComponentType::Instance(declarations) => {
                self.add_types(u32::try_from(declarations.len()).unwrap_or(u32::MAX))?;
                declarations.iter().try_for_each(|declaration| match declaration {
                    InstanceTypeDeclaration::Type(inner) => self.component_type(inner, depth + 1),
                    InstanceTypeDeclaration::Export { name, .. } => self.name(name.name),
                    InstanceTypeDeclaration::CoreType(_) | InstanceTypeDeclaration::Alias(_) => Ok(()),
                })
            }
            ComponentType::Resource { .. } => Ok(()),
        }
    }

    fn custom_section(
        &mut self,
        section: &wasmparser::CustomSectionReader<'_>,
        depth: u64,
    ) -> Result<(), StructureError> {
        if section.name() == SDK_SECTION {
            let version = String::from_utf8_lossy(section.data());
            self.sdk_version = Some(version.chars().take(40).collect());
        } else if section.name().starts_with(COMPONENT_TYPE_SECTION) {
            // A component within the section, which the encoder reads.
            self.has_component_type |= depth == 0;
            self.walk_into(section.data(), depth + 1)?;
        } else if let wasmparser::KnownCustom::Producers(fields) = section.as_known() {
            for field in fields {
                let field = field?;
                for value in field.values {
                    let value = value?;
                    let producer = format!("{}: {} {}", field.name, value.name, value.version);
                    if self.producers.len() < PRODUCERS_MAX && !self.producers.contains(&producer) {
                        self.producers.push(producer);
                    }
                }
            }
        }
        Ok(())
    }

    fn add_types(&mut self, count: u32) -> Result<(), StructureError> {
        self.types += u64::from(count);
        check(Counted::Types, self.types)
    }

    fn add_definitions(&mut self, count: u32) -> Result<(), StructureError> {
        self.definitions += u64::from(count);
        check(Counted::Definitions, self.definitions)
    }

    fn name(&self, name: &str) -> Result<(), StructureError> {
        check_length(Counted::NameBytes, name.len())
    }
}

fn check(counted: Counted, found: u64) -> Result<(), StructureError> {
    if found <= counted.max() { Ok(()) } else { Err(StructureError::Limit { counted, found }) }
}

fn check_length(counted: Counted, found: usize) -> Result<(), StructureError> {
    check(counted, found as u64)
}
