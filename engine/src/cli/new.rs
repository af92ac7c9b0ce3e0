//! `engine new`: makes a crate for a plugin, with a test, ready for `engine build`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::{CliError, Outcome};

/// `engine new`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  engine new words\n  engine new --template lines shout\n  engine new --sdk ../engine/sdk words"
)]
pub(crate) struct NewOptions {
    /// What the program does at first.
    #[arg(long, value_name = "NAME", default_value = "word-count")]
    template: Template,
    /// Directory of the SDK; by default the one beside the sources that this program was built from.
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

pub(crate) fn run(new: &NewOptions) -> Outcome {
    let name = crate_name(&new.path).map_err(CliError::usage)?;
    let is_used = new.path.read_dir().is_ok_and(|mut entries| entries.next().is_some()) || new.path.is_file();
    if is_used {
        return Err(CliError::usage(anyhow::anyhow!("{} is there already", new.path.display())));
    }
    let sdk = sdk_dependency(new.sdk.as_deref()).map_err(CliError::usage)?;
    let fill = |template: &str| {
        template.replace("{{name}}", &name).replace("{{file}}", &name.replace('-', "_")).replace("{{sdk}}", &sdk)
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
fn sdk_dependency(given: Option<&Path>) -> anyhow::Result<String> {
    let own = Path::new(OWN_SOURCES).join("../sdk");
    let (path, is_given) = match given {
        Some(path) => (path, true),
        None => (own.as_path(), false),
    };
    match path.canonicalize() {
        Ok(path) if path.join("Cargo.toml").is_file() => {
            Ok(format!("{{ path = {} }}", serde_json::Value::from(path.to_string_lossy())))
        }
        _ if is_given => anyhow::bail!("--sdk {}: there is no crate", path.display()),
        _ => Ok(format!("\"{}\"", env!("CARGO_PKG_VERSION"))),
    }
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
            assert!(run(&new).is_ok());
            for file in ["Cargo.toml", "README.md", "src/lib.rs"] {
                let text = std::fs::read_to_string(path.join(file)).expect("written");
                assert!(!text.contains("{{"), "{file}: {text}");
            }
            let manifest = std::fs::read_to_string(path.join("Cargo.toml")).expect("written");
            let manifest: toml::Table = manifest.parse().expect("TOML");
            let sdk = manifest["dependencies"]["engine-sdk"]["path"].as_str().expect("a path");
            assert!(Path::new(sdk).join("src/lib.rs").is_file());
            assert!(matches!(run(&new), Err(CliError::Usage(_))), "nothing is overwritten");
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
