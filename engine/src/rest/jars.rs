//! Uploaded plugins, under the paths that Flink has for jars: upload, list, plan, run, delete.
//!
//! A plugin is kept as `UUID.wasm` beside `UUID.json`, which remembers the name
//! it was uploaded under: that name is shown and never used as a path.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    Json,
    extract::{Multipart, State, multipart::MultipartRejection},
    http::StatusCode,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    PlanRequest, RestState,
    error::RestError,
    job_submit,
    request::{Params, json_body},
};
use crate::{
    base::{
        config::{Configuration, Origin, options},
        ids::{AllocationId, JobId},
    },
    client::program::split_args,
    graph::job_graph::JobGraph,
};

type Answer = Result<Json<Value>, RestError>;

/// Uploaded plugins that are kept; more are refused until one is deleted.
const JARS_MAX: usize = 1000;
/// Characters of an uploaded name that are kept.
const NAME_CHARS_MAX: usize = 80;

/// The directory of uploaded plugins.
pub(crate) struct JarStore {
    dir: PathBuf,
}

/// What is remembered of an upload.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Jar {
    /// 32 hexadecimal digits, name of the files.
    uuid: String,
    /// As uploaded, reduced to harmless characters.
    pub(crate) name: String,
    /// Milliseconds since the epoch.
    uploaded: i64,
    /// What the plugin says of itself.
    description: String,
}

impl Jar {
    fn id(&self) -> String {
        format!("{}_{}", self.uuid, self.name)
    }
}

impl JarStore {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    fn path(&self, uuid: &str, extension: &str) -> PathBuf {
        self.dir.join(format!("{uuid}.{extension}"))
    }

    /// Keeps a plugin. The description is written last and by a rename, so that
    /// an upload is either listed whole or not at all.
    fn add(&self, name: &str, content: &[u8], description: String, uploaded: i64) -> io::Result<Jar> {
        // An id drawn at random; no id of a component is meant.
        let uuid = AllocationId::random().to_string();
        let jar = Jar { uuid, name: harmless_name(name), uploaded, description };
        let write = || {
            let mut plugin = tempfile::NamedTempFile::new_in(&self.dir)?;
            io::Write::write_all(&mut plugin, content)?;
            plugin.persist(self.path(&jar.uuid, "wasm"))?;
            let mut entry = tempfile::NamedTempFile::new_in(&self.dir)?;
            io::Write::write_all(&mut entry, &serde_json::to_vec(&jar)?)?;
            entry.persist(self.path(&jar.uuid, "json"))?;
            Ok(())
        };
        write().inspect_err(|_: &io::Error| self.remove_files(&jar.uuid))?;
        Ok(jar)
    }

    /// All plugins, the newest first.
    fn list(&self) -> io::Result<Vec<Jar>> {
        let mut jars = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                // A file that went or is damaged is not listed.
                jars.extend(fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Jar>(&text).ok()));
            }
        }
        jars.sort_by(|left, right| (right.uploaded, &right.uuid).cmp(&(left.uploaded, &left.uuid)));
        Ok(jars)
    }

    fn find(&self, id: &str) -> Option<Jar> {
        let (uuid, _) = id.split_once('_')?;
        if uuid.len() != 32 || !uuid.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let jar: Jar = serde_json::from_slice(&fs::read(self.path(uuid, "json")).ok()?).ok()?;
        (jar.id() == id).then_some(jar)
    }

    fn content(&self, jar: &Jar) -> io::Result<Bytes> {
        fs::read(self.path(&jar.uuid, "wasm")).map(Bytes::from)
    }

    fn remove_files(&self, uuid: &str) {
        for extension in ["json", "wasm"] {
            let path = self.path(uuid, extension);
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!("could not remove {}: {error}", path.display());
            }
        }
    }
}

/// The last component of a name, without anything that a shell, a path or a page could mistake.
fn harmless_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let mut harmless: String = last
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' })
        .take(NAME_CHARS_MAX)
        .collect();
    if !harmless.ends_with(".wasm") {
        harmless.truncate(NAME_CHARS_MAX - ".wasm".len());
        harmless.push_str(".wasm");
    }
    harmless
}

fn io_error(error: io::Error) -> RestError {
    RestError::internal(format!("the directory of uploaded plugins cannot be used: {error}"))
}

pub(crate) async fn upload(
    State(state): State<Arc<RestState>>,
    multipart: Result<Multipart, MultipartRejection>,
) -> Answer {
    state.check_submission_enabled()?;
    let _permit = job_submit::upload_permit(&state).await?;
    let mut parts = job_submit::read_parts(multipart).await?;
    let (Some(part), true) = (parts.pop(), parts.is_empty()) else {
        return Err(RestError::bad_request("exactly one file must be sent"));
    };
    let Some(name) = part.file_name.filter(|name| name.ends_with(".wasm")) else {
        return Err(RestError::bad_request("only plugins, whose names end in .wasm, can be uploaded"));
    };
    if JARS_MAX <= state.jars.list().map_err(io_error)?.len() {
        return Err(RestError::new(
            StatusCode::INSUFFICIENT_STORAGE,
            format!("{JARS_MAX} plugins are kept already: delete some"),
        ));
    }
    let name = harmless_name(&name);
    let programs = Arc::clone(&state.services.programs);
    let (content, shown_name) = (part.content.clone(), name.clone());
    let description = state.blocking(move || programs.describe(&content, &shown_name)).await?;
    let jar = state.jars.add(&name, &part.content, description, state.now()).map_err(io_error)?;
    Ok(Json(json!({ "filename": jar.id(), "status": "success" })))
}

pub(crate) async fn list(State(state): State<Arc<RestState>>) -> Answer {
    let files: Vec<Value> = state
        .jars
        .list()
        .map_err(io_error)?
        .iter()
        .map(|jar| {
            json!({
                "id": jar.id(),
                "name": jar.name,
                "uploaded": jar.uploaded,
                "entry": [{ "name": "plan", "description": jar.description }],
            })
        })
        .collect();
    Ok(Json(json!({ "address": state.url, "files": files })))
}

fn find(state: &RestState, params: &Params) -> Result<Jar, RestError> {
    let id = params.path("jarid");
    state.jars.find(id).ok_or_else(|| RestError::bad_request(format!("there is no uploaded plugin \"{id}\"")))
}

pub(crate) async fn delete(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    state.check_submission_enabled()?;
    let jar = find(&state, &params)?;
    state.jars.remove_files(&jar.uuid);
    Ok(Json(json!({})))
}

/// Body of `plan` and `run`. Query parameters of the same meaning are taken where the body has nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RunRequest {
    program_args_list: Option<Vec<String>>,
    program_args: Option<String>,
    parallelism: Option<u32>,
    job_id: Option<JobId>,
    flink_configuration: std::collections::BTreeMap<String, String>,
    savepoint_path: Option<String>,
    allow_non_restored_state: Option<bool>,
    claim_mode: Option<String>,
    restore_mode: Option<String>,
}

async fn plan_job(state: &Arc<RestState>, params: &Params, body: &Bytes) -> Result<(JobGraph, Bytes), RestError> {
    state.check_submission_enabled()?;
    let jar = find(state, params)?;
    let request: RunRequest = json_body(body)?;
    let savepoint = request.savepoint_path.as_deref().or(params.query("savepointPath"));
    let savepoint = savepoint.filter(|path| !path.is_empty()).map(str::to_owned);
    let allow_non_restored_state = match request.allow_non_restored_state {
        Some(allow) => Some(allow),
        None => params.query_as("allowNonRestoredState")?,
    };
    if let Some(mode) = request.claim_mode.or(request.restore_mode).filter(|mode| mode != "NO_CLAIM") {
        let message = format!("claimMode is \"{mode}\": a savepoint stays its owner's, so that only NO_CLAIM is taken");
        return Err(RestError::bad_request(message));
    }
    let args = match (request.program_args_list, request.program_args) {
        (Some(list), _) => list,
        (None, Some(text)) => split_args(&text).map_err(RestError::bad_request)?,
        (None, None) => match params.query("program-args") {
            Some(text) => split_args(text).map_err(RestError::bad_request)?,
            None => params.query_list("programArg").into_iter().map(str::to_owned).collect(),
        },
    };
    let mut configuration = Configuration::default();
    for (key, value) in &request.flink_configuration {
        configuration
            .set(key, value, Origin::Dynamic)
            .map_err(|error| RestError::bad_request(format!("flinkConfiguration: {error}")))?;
    }
    let parallelism = match request.parallelism {
        Some(parallelism) => Some(parallelism),
        None => params.query_as("parallelism")?,
    };
    if let Some(parallelism) = parallelism {
        configuration
            .set(options::PARALLELISM.key, &parallelism.to_string(), Origin::CommandLine)
            .map_err(|error| RestError::bad_request(error.to_string()))?;
    }
    let restore = [
        (options::RECOVERY_PATH.key, savepoint),
        (options::RECOVERY_IGNORE_UNCLAIMED.key, allow_non_restored_state.map(|allow| allow.to_string())),
    ];
    for (key, value) in restore {
        if let Some(value) = value {
            configuration
                .set(key, &value, Origin::CommandLine)
                .map_err(|error| RestError::bad_request(error.to_string()))?;
        }
    }
    let _permit = job_submit::upload_permit(state).await?;
    let plugin = state.jars.content(&jar).map_err(io_error)?;
    let programs = Arc::clone(&state.services.programs);
    let request = PlanRequest {
        plugin: plugin.clone(),
        plugin_name: jar.name,
        args,
        configuration,
        job: request.job_id.unwrap_or_else(JobId::random),
        artifacts: Vec::new(),
    };
    let mut job_graph = state.blocking(move || programs.plan(request)).await?;
    job_submit::remove_owner_settings(&mut job_graph);
    job_submit::check(state, &job_graph)?;
    Ok((job_graph, plugin))
}

pub(crate) async fn plan(State(state): State<Arc<RestState>>, params: Params, body: Bytes) -> Answer {
    let (job_graph, _) = plan_job(&state, &params, &body).await?;
    Ok(Json(json!({ "plan": super::jobs::plan_value(&job_graph.json_plan) })))
}

pub(crate) async fn run(State(state): State<Arc<RestState>>, params: Params, body: Bytes) -> Answer {
    let (job_graph, plugin) = plan_job(&state, &params, &body).await?;
    let job = job_graph.job_id;
    state.submit(job_graph, vec![plugin]).await?;
    Ok(Json(json!({ "jobid": job })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploaded_names_lose_all_that_could_be_a_path_or_markup() {
        assert_eq!(harmless_name("word_count.wasm"), "word_count.wasm");
        assert_eq!(harmless_name("../../etc/passwd"), "passwd.wasm");
        assert_eq!(harmless_name("..\\..\\x.wasm"), "x.wasm");
        assert_eq!(harmless_name("a\0<script>.wasm"), "a__script_.wasm");
        assert_eq!(harmless_name(""), ".wasm");
        assert_eq!(harmless_name(&"n".repeat(500)).len(), NAME_CHARS_MAX);
    }

    #[test]
    fn an_id_finds_its_plugin_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = JarStore::open(dir.path()).expect("opened");
        let jar = store.add("a.wasm", b"content", "does it".to_owned(), 5).expect("kept");
        assert_eq!(store.find(&jar.id()).map(|found| found.description), Some("does it".to_owned()));
        assert_eq!(store.content(&jar).expect("there"), Bytes::from_static(b"content"));
        for id in ["", "_", "../x_a.wasm", &format!("{}_b.wasm", jar.uuid), &format!("{}_a.wasm", "0".repeat(32))] {
            assert!(store.find(id).is_none(), "{id}");
        }
        store.remove_files(&jar.uuid);
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 0);
    }
}
