//! The configuration of a command line: file, environment, options and `-D`, with
//! where each value came from.

use std::path::{Path, PathBuf};

use super::{CliError, GlobalOptions, Output};
use crate::base::config::{ConfigOption, Configuration, Origin, nearest, options};

/// Environment variable that names the JobManager.
const JOB_MANAGER_VARIABLE: &str = "ENGINE_JOBMANAGER";
/// Name of the configuration file in the directories where it is looked for.
const FILE_NAME: &str = "engine.toml";

/// Settings that explicit options make, with the option as the user wrote it.
#[derive(Debug, Default)]
pub(crate) struct ExplicitSettings(Vec<(&'static str, &'static str, String)>);

impl ExplicitSettings {
    /// Takes an option's value, if there is one.
    pub(crate) fn add<T>(&mut self, option: &'static str, key: &'static ConfigOption<T>, value: Option<impl ToString>) {
        if let Some(value) = value {
            self.0.push((option, key.key, value.to_string()));
        }
    }
}

/// Reads the configuration file and everything that overrides it.
pub(crate) fn load(global: &GlobalOptions, explicit: &ExplicitSettings) -> Result<Configuration, CliError> {
    let file = match &global.config {
        Some(path) => Some(path.clone()),
        None => default_file(),
    };
    let job_manager = std::env::var(JOB_MANAGER_VARIABLE).ok();
    assemble(file.as_deref(), job_manager.as_deref(), explicit, &global.dynamic)
}

fn assemble(
    file: Option<&Path>,
    job_manager: Option<&str>,
    explicit: &ExplicitSettings,
    dynamic: &[String],
) -> Result<Configuration, CliError> {
    let mut configuration = match file {
        Some(path) => Configuration::load_file(path).map_err(CliError::usage)?,
        None => Configuration::default(),
    };
    if let Some(url) = job_manager.filter(|url| !url.is_empty()) {
        configuration
            .set(options::JOB_MANAGER_URL.key, url, Origin::Environment)
            .map_err(|error| CliError::usage(anyhow::anyhow!("{JOB_MANAGER_VARIABLE}: {error}")))?;
    }
    for (option, key, value) in &explicit.0 {
        configuration
            .set(key, value, Origin::CommandLine)
            .map_err(|error| CliError::usage(anyhow::anyhow!("{option}: {error}")))?;
    }
    for setting in dynamic {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(CliError::usage(anyhow::anyhow!("-D {setting}: expected KEY=VALUE{}", key_hint(setting))));
        };
        configuration
            .set(key.trim(), value.trim(), Origin::Dynamic)
            .map_err(|error| CliError::usage(anyhow::anyhow!("-D {key}: {error}")))?;
    }
    Ok(configuration)
}

fn key_hint(text: &str) -> String {
    let nearest = nearest(text, options::ALL.iter().map(|option| option.key));
    nearest.map_or_else(String::new, |key| format!(", for example {key}=…"))
}

/// The first of the default places that has a file.
fn default_file() -> Option<PathBuf> {
    let user = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
    let places = [Some(PathBuf::from(FILE_NAME)), user.map(|directory| directory.join("engine").join(FILE_NAME))];
    places.into_iter().flatten().find(|path| path.is_file())
}

/// Prints each value with where it came from.
pub(crate) fn print_effective(configuration: &Configuration, output: Output) -> Result<(), CliError> {
    match output {
        Output::Json => {
            let entries: Vec<serde_json::Value> = configuration
                .effective()
                .map(|(key, value, origin)| {
                    serde_json::json!({ "key": key, "value": value, "origin": origin.to_string() })
                })
                .collect();
            super::print_json(&entries)
        }
        Output::Text => super::print(&effective_text(configuration)),
    }
}

fn effective_text(configuration: &Configuration) -> String {
    let width = options::ALL.iter().map(|option| option.key.len()).max().unwrap_or(0);
    let lines: Vec<String> =
        configuration.effective().map(|(key, value, origin)| format!("{key:width$} = {value}  # {origin}")).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(error: CliError) -> String {
        match error {
            CliError::Usage(error) => format!("{error:#}"),
            other => panic!("not bad usage: {other:?}"),
        }
    }

    #[test]
    fn the_stronger_origin_wins() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join(FILE_NAME);
        std::fs::write(&file, "parallelism.default = 2\nrest.address = \"file:1\"\n").expect("written");
        let mut explicit = ExplicitSettings::default();
        let parallelism = |configuration: &Configuration| configuration.get(&options::PARALLELISM);
        let load = |explicit: &ExplicitSettings, dynamic: &[&str]| {
            let dynamic: Vec<String> = dynamic.iter().map(|setting| (*setting).to_owned()).collect();
            assemble(Some(&file), Some("environment:1"), explicit, &dynamic).expect("valid")
        };
        let mut configuration = load(&explicit, &[]);
        assert_eq!(parallelism(&configuration), 2);
        assert_eq!(configuration.get(&options::JOB_MANAGER_URL).as_deref(), Some("environment:1"));
        configuration.set("parallelism.default", "3", Origin::Program).expect("valid");
        assert_eq!(parallelism(&configuration), 3);
        explicit.add("--parallelism", &options::PARALLELISM, Some(4));
        let mut configuration = load(&explicit, &[]);
        configuration.set("parallelism.default", "3", Origin::Program).expect("valid");
        assert_eq!(parallelism(&configuration), 4);
        let mut configuration = load(&explicit, &["parallelism.default = 5"]);
        configuration.set("parallelism.default", "3", Origin::Program).expect("valid");
        assert_eq!(parallelism(&configuration), 5);
        assert!(effective_text(&configuration).contains(" = 5  # -D"));
        assert!(effective_text(&Configuration::default()).contains(" = 1  # default"));
    }

    #[test]
    fn bad_settings_name_the_option_and_the_nearest_key() {
        let load = |explicit: &ExplicitSettings, dynamic: &str| {
            message(assemble(None, None, explicit, &[dynamic.to_owned()]).expect_err("refused"))
        };
        let none = ExplicitSettings::default();
        assert_eq!(
            load(&none, "paralelism.default=2"),
            "-D paralelism.default: unknown configuration key \"paralelism.default\", did you mean \
             \"parallelism.default\"?"
        );
        assert!(load(&none, "parallelism.default").starts_with("-D parallelism.default: expected KEY=VALUE"));
        let mut explicit = ExplicitSettings::default();
        explicit.add("--parallelism", &options::PARALLELISM, Some(0));
        assert!(load(&explicit, "rest.port=1").starts_with("--parallelism: invalid value \"0\""));
        let missing = assemble(Some(Path::new("/nowhere/engine.toml")), None, &none, &[]).expect_err("missing");
        assert!(message(missing).starts_with("could not read the configuration file /nowhere/engine.toml: "));
    }
}
