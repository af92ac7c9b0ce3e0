//! `engine new`: makes a crate for a plugin, with a test, ready for `engine build`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::{CliError, GlobalOptions, Outcome, Output, settings};

/// `engine new`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  engine new words\n  engine new --template lines shout\n  engine new --sdk ../engine/sdk words"
)]
pub(crate) struct NewOptions {
    /// What the program does at first.
    #[arg(long, value_name = "NAME", default_value = "word-count")]
    template: Template,
    /// Directory of the SDK; by default that of the checkout that this program lies in, else the one it was built from.
    #[arg(long, value_name = "DIR")]
    sdk: Option<PathBuf>,
    /// Directory to make; its last component names the crate.
    path: PathBuf,
}

/// What a program does at first.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Template {
    /// Counts words of a text file.
    WordCount,
    /// Changes lines of a text file one by one.
    Lines,
}

impl Template {
    fn source(self) -> &'static str {
        match self {
            Self::WordCount => include_str!("templates/word_count.rs.txt"),
            Self::Lines => include_str!("templates/lines.rs.txt"),
        }
    }
}

const MANIFEST: &str = include_str!("templates/Cargo.toml.txt");
const README: &str = include_str!("templates/README.md.txt");
/// Directory of the sources that this program was built from.
const OWN_SOURCES: &str = env!("CARGO_MANIFEST_DIR");

pub(crate) fn run(new: &NewOptions, global: &GlobalOptions) -> Outcome {
    // None of it matters here; what is wrong in it should still be told.
    settings::load(global, &settings::ExplicitSettings::default())?;
    let name = crate_name(&new.path).map_err(CliError::usage)?;
    let is_used = new.path.read_dir().is_ok_and(|mut entries| entries.next().is_some()) || new.path.is_file();
    if is_used {
        return Err(CliError::usage(anyhow::anyhow!("{} is there already", new.path.display())));
    }
    let program = std::env::current_exe().and_then(|program| program.canonicalize()).ok();
    let sdk = Sdk::choose(new.sdk.as_deref(), program.as_deref()).map_err(CliError::usage)?;
    let dependency = sdk.dependency();
    let fill = |template: &str| {
        template.replace("{{name}}", &name).replace("{{file}}", &name.replace('-', "_")).replace("{{sdk}}", &dependency)
    };
    let files = [
        ("Cargo.toml", fill(MANIFEST)),
        ("README.md", fill(README)),
        ("src/lib.rs", fill(new.template.source())),
        (".gitignore", "/target\n*.wasm\n".to_owned()),
    ];
    std::fs::create_dir_all(new.path.join("src"))?;
    for (file, content) in files {
        let path = new.path.join(file);
        std::fs::write(&path, content)
            .map_err(|error| CliError::failed(anyhow::anyhow!("could not write {}: {error}", path.display())))?;
    }
    super::say(&format!("The crate uses the SDK {}; --sdk DIR chooses another.", sdk.shown()));
    if global.output == Output::Json {
        return super::print_json(&serde_json::json!({ "crate": new.path, "sdk": sdk.shown() }));
    }
    let shown = new.path.display();
    super::print(&format!(
        "{shown} is a plugin. Next:\n  cd {shown}\n  cargo test\n  engine build\n  engine submit {}.wasm --input FILE",
        name.replace('-', "_")
    ))
}

/// The last component of the path, if cargo takes it as a name.
fn crate_name(path: &Path) -> anyhow::Result<String> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins_well && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
        return Ok(name.to_owned());
    }
    anyhow::bail!("\"{name}\" cannot be the name of a crate: expected letters, digits, - and _, a letter first")
}

/// The SDK as the manifest names it: by path where there is one, else by the version of this program.
#[derive(Debug, Eq, PartialEq)]
enum Sdk {
    Directory(PathBuf),
    Version(&'static str),
}

impl Sdk {
    /// The given one; else that of the checkout whose `target/PROFILE` the program lies in; else the compiled-in one.
    fn choose(given: Option<&Path>, program: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(given) = given {
            let sdk = crate_of_sdk(given);
            return sdk.map(Self::Directory).ok_or_else(|| {
                anyhow::anyhow!("--sdk {}: there is no crate engine-sdk in this directory", given.display())
            });
        }
        let beside = program.and_then(|program| program.ancestors().nth(3)).map(|checkout| checkout.join("sdk"));
        let compiled_in = Path::new(OWN_SOURCES).join("../sdk");
        let found = beside.into_iter().chain([compiled_in]).find_map(|path| crate_of_sdk(&path));
        Ok(found.map_or(Self::Version(env!("CARGO_PKG_VERSION")), Self::Directory))
    }

    fn dependency(&self) -> String {
        match self {
            Self::Directory(path) => format!("{{ path = {} }}", serde_json::Value::from(path.to_string_lossy())),
            Self::Version(version) => format!("\"{version}\""),
        }
    }

    /// For people.
    fn shown(&self) -> String {
        match self {
            Self::Directory(path) => format!("in {}", path.display()),
            Self::Version(version) => format!("engine-sdk {version}, from a registry"),
        }
    }
}

/// The directory without links, if it has the SDK's manifest.
fn crate_of_sdk(directory: &Path) -> Option<PathBuf> {
    let directory = directory.canonicalize().ok()?;
    let manifest: toml::Table = std::fs::read_to_string(directory.join("Cargo.toml")).ok()?.parse().ok()?;
    let name = manifest.get("package")?.get("name")?.as_str()?;
    (name == "engine-sdk").then_some(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_made_with_nothing_left_to_fill_in() {
        let directory = tempfile::tempdir().expect("a directory");
        for template in [Template::WordCount, Template::Lines] {
            let path = directory.path().join(format!("my-{template:?}").to_lowercase());
            let new = NewOptions { template, sdk: None, path: path.clone() };
            let global = GlobalOptions {
                config: None,
                dynamic: Vec::new(),
                output: Output::Text,
                log_level: None,
                failpoints: false,
            };
            assert!(run(&new, &global).is_ok());
            for file in ["Cargo.toml", "README.md", "src/lib.rs"] {
                let text = std::fs::read_to_string(path.join(file)).expect("written");
                assert!(!text.contains("{{"), "{file}: {text}");
            }
            let manifest = std::fs::read_to_string(path.join("Cargo.toml")).expect("written");
            let manifest: toml::Table = manifest.parse().expect("TOML");
            let sdk = manifest["dependencies"]["engine-sdk"]["path"].as_str().expect("a path");
            assert!(Path::new(sdk).join("src/lib.rs").is_file());
            assert!(matches!(run(&new, &global), Err(CliError::Usage(_))), "nothing is overwritten");
        }
    }

    #[test]
    fn the_sdk_of_the_programs_own_checkout_comes_first() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().canonicalize().expect("there");
        let program = root.join("target/release/engine");
        let compiled_in = Sdk::choose(None, None).expect("found");
        let own = Path::new(OWN_SOURCES).join("../sdk").canonicalize().expect("there");
        assert_eq!(compiled_in, Sdk::Directory(own));
        let sdk = root.join("sdk");
        std::fs::create_dir(&sdk).expect("made");
        for (manifest, is_sdk) in [("[package]\nname = \"another\"", false), ("[package]\nname = \"engine-sdk\"", true)]
        {
            std::fs::write(sdk.join("Cargo.toml"), manifest).expect("written");
            let chosen = Sdk::choose(None, Some(&program)).expect("found");
            assert_eq!(chosen == Sdk::Directory(sdk.clone()), is_sdk, "{manifest}");
            assert_eq!(chosen == compiled_in, !is_sdk, "{manifest}");
            assert_eq!(Sdk::choose(Some(&sdk), None).is_ok(), is_sdk, "{manifest}");
        }
    }

    #[test]
    fn names_that_cargo_refuses_are_refused() {
        assert_eq!(crate_name(Path::new("a/my-words")).expect("a name"), "my-words");
        for bad in ["", "..", "1x", "a b", "größe"] {
            assert!(crate_name(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
