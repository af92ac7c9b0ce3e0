//! The process's `wasmtime::Engine`, and plugins that it compiled.
//!
//! Compiled code is shared by digest in memory as long as somebody holds it (and
//! a few plugins longer), and kept on disk. One digest is compiled once at a time.

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use crossbeam_channel::RecvTimeoutError;
use rustix::time::{ClockId, clock_gettime};
use wasmtime::component::{Component, InstancePre, Linker};

use super::{
    AdmissionError, AdmittedPlugin, CancelFlag, EmitError, EmitTarget, GuestError, LogLevel, SandboxLimits,
    admission::{self, Admission},
    code_cache::{AuthenticCode, CodeCache},
    guest_error::BACKTRACE_FRAMES_MAX,
    host::{self, AnyTarget, Host},
    instance::{ExportIndices, Instance, InstanceTemplate},
    ticker::Ticker,
};
use crate::{
    base::{
        clock::{Clock, Timestamp},
        config::{ConfigOption, Configuration, MemorySize, options},
        ids::BlobDigest,
        stream_element::WatermarkStatus,
    },
    connector::Verdict,
    graph::stream_graph::StreamGraph,
};

/// Plugins whose code stays in memory although nobody uses it.
const UNUSED_PLUGINS_MAX: usize = 8;
/// Time between two looks at how much CPU time a compilation took.
const COMPILE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Stack of the thread that compiles.
const COMPILE_STACK_BYTES: usize = 16 << 20;

/// Settings of the runtime.
#[derive(Clone, Debug)]
pub struct PluginRuntimeConfig {
    /// Bytes of stack of a plugin's functions.
    pub stack_bytes_max: usize,
    /// Bytes of a submitted plugin.
    pub plugin_bytes_max: usize,
    /// CPU time of one compilation.
    pub compile_cpu_time: Duration,
    /// Directory of compiled plugins; none: they are not kept on disk.
    pub cache_dir: Option<PathBuf>,
    /// Time by which the log rate is measured.
    pub clock: Clock,
}

impl PluginRuntimeConfig {
    /// Reads the options `plugin.` and `sandbox.stack.max`.
    pub fn from_configuration(configuration: &Configuration) -> Self {
        let bytes =
            |option: &ConfigOption<MemorySize>| usize::try_from(configuration.get(option).0).unwrap_or(usize::MAX);
        Self {
            stack_bytes_max: bytes(&options::STACK_MAX),
            plugin_bytes_max: bytes(&options::PLUGIN_BYTES_MAX),
            compile_cpu_time: configuration.get(&options::PLUGIN_COMPILE_CPU_TIME),
            cache_dir: configuration.get(&options::PLUGIN_CACHE_DIR).map(PathBuf::from).or_else(user_cache_dir),
            clock: Clock::System,
        }
    }
}

/// `engine` in the user's cache directory, by the XDG base directory specification.
fn user_cache_dir() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("engine"))
}

/// The runtime could not be started.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// wasmtime refuses the settings or the machine.
    #[error("could not set up wasmtime: {0}")]
    Engine(String),
    /// No thread for the epochs.
    #[error("could not start the epoch ticker")]
    Ticker(#[source] std::io::Error),
}

/// A plugin could not be compiled.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CompileError {
    /// Took more than `plugin.compile.cpu-time`.
    #[error("compiling plugin {plugin} took more than {limit:?} of CPU time (plugin.compile.cpu-time)")]
    Limit {
        /// File name.
        plugin: String,
        /// The limit.
        limit: Duration,
    },
    /// The compiler refused it or panicked.
    #[error("could not compile plugin {plugin}: {message}")]
    Failed {
        /// File name.
        plugin: String,
        /// What the compiler said.
        message: String,
    },
}

impl CompileError {
    /// Stable code for scripts and REST.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Limit { .. } => "compile-limit",
            Self::Failed { .. } => "compile-failed",
        }
    }
}

/// A plugin could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It is refused.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// It could not be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

impl LoadError {
    /// Stable code for scripts and REST.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Admission(error) => error.code(),
            Self::Compile(error) => error.code(),
        }
    }
}

/// Admits, compiles and instantiates plugins; one per process.
pub struct PluginRuntime {
    admission: Arc<Admission>,
    compiler: Arc<Compiler>,
    ticker: Arc<Ticker>,
    clock: Clock,
    compile_cpu_time: Duration,
    stack_bytes_max: usize,
    plugins: Mutex<Plugins>,
}

/// What the thread of a compilation needs.
struct Compiler {
    engine: wasmtime::Engine,
    linker: Linker<Host>,
    cache: Option<CodeCache>,
}

/// Code by digest; the inner lock is held while the digest is being compiled.
#[derive(Default)]
struct Plugins {
    by_digest: HashMap<BlobDigest, Arc<Mutex<Weak<PluginCode>>>>,
    recent: VecDeque<Arc<PluginCode>>,
}

struct PluginCode {
    pre: InstancePre<Host>,
    exports: ExportIndices,
}

impl PluginRuntime {
    /// Starts the runtime with its thread.
    ///
    /// # Errors
    /// Returns an error if wasmtime or the thread cannot be started. A cache
    /// directory that cannot be used is reported in the log only.
    pub fn new(config: PluginRuntimeConfig) -> Result<Arc<Self>, RuntimeError> {
        let as_engine_error = |error: wasmtime::Error| RuntimeError::Engine(format!("{error:#}"));
        let engine = wasmtime::Engine::new(&wasmtime_config(config.stack_bytes_max)).map_err(as_engine_error)?;
        let linker = host::linker(&engine).map_err(as_engine_error)?;
        let cache = config.cache_dir.as_deref().and_then(|directory| open_cache(directory, &engine));
        let ticking = engine.clone();
        let ticker = Ticker::start(move || ticking.increment_epoch()).map_err(RuntimeError::Ticker)?;
        Ok(Arc::new(Self {
            admission: Arc::new(Admission::new(config.plugin_bytes_max)),
            compiler: Arc::new(Compiler { engine, linker, cache }),
            ticker: Arc::new(ticker),
            clock: config.clock,
            compile_cpu_time: config.compile_cpu_time,
            stack_bytes_max: config.stack_bytes_max,
            plugins: Mutex::default(),
        }))
    }

    /// Stack that a guest may use, in bytes: a thread that enters one needs more.
    pub fn stack_bytes_max(&self) -> usize {
        self.stack_bytes_max
    }

    /// Checks a plugin, a component or a core module made with the SDK, before it
    /// is compiled. `name` is its file name, for messages.
    ///
    /// # Errors
    /// Returns an error that says why the plugin is refused.
    pub fn admit(&self, bytes: &[u8], name: &str) -> Result<AdmittedPlugin, AdmissionError> {
        self.admission.admit(bytes, name)
    }

    /// Compiles a plugin, or takes its code from memory or disk.
    ///
    /// # Errors
    /// Returns an error if the compiler fails or takes too long.
    pub fn compile(&self, plugin: &AdmittedPlugin) -> Result<Arc<CompiledPlugin>, CompileError> {
        let digest = plugin.digest();
        let code = self.code(digest, || self.compile_anew(plugin))?;
        Ok(self.plugin(digest, &plugin.name, code))
    }

    /// The plugin that these bytes are: its code from memory or disk if it is there, else admitted and compiled.
    ///
    /// Code is kept only of plugins that were admitted, by this version of the engine: what is found
    /// under the digest of the bytes need not be looked at again.
    ///
    /// # Errors
    /// Returns an error if the plugin is refused, the compiler fails or it takes too long.
    pub fn load(&self, bytes: &[u8], name: &str) -> Result<Arc<CompiledPlugin>, LoadError> {
        self.admission.check_size(bytes, name)?;
        let digest = admission::digest(bytes);
        let code = self.code(digest, || Ok::<_, LoadError>(self.compile_anew(&self.admit(bytes, name)?)?))?;
        Ok(self.plugin(digest, &admission::shown_name(name), code))
    }

    /// The plugin of this digest, if its code is in memory: it was admitted and compiled
    /// in this process then. `name` is its file name, for messages.
    pub fn compiled(&self, digest: BlobDigest, name: &str) -> Option<Arc<CompiledPlugin>> {
        let slot = {
            let plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(plugins.by_digest.get(&digest)?)
        };
        let code = slot.lock().unwrap_or_else(PoisonError::into_inner).upgrade()?;
        Some(self.plugin(digest, name, code))
    }

    fn plugin(&self, digest: BlobDigest, name: &str, code: Arc<PluginCode>) -> Arc<CompiledPlugin> {
        let template = InstanceTemplate {
            plugin: name.to_owned(),
            pre: code.pre.clone(),
            exports: code.exports,
            ticker: Arc::clone(&self.ticker),
        };
        Arc::new(CompiledPlugin { digest, template: Arc::new(template), clock: self.clock.clone(), code })
    }

    /// The code in memory or on disk, or what `make` returns; made once for all that wait for it.
    fn code<E>(&self, digest: BlobDigest, make: impl FnOnce() -> Result<PluginCode, E>) -> Result<Arc<PluginCode>, E> {
        let slot = {
            let mut plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
            // A slot that only the map holds and whose code is gone is of no use any more.
            plugins.by_digest.retain(|_, slot| {
                Arc::strong_count(slot) > 1 || slot.lock().unwrap_or_else(PoisonError::into_inner).strong_count() > 0
            });
            Arc::clone(plugins.by_digest.entry(digest).or_default())
        };
        let mut weak = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = weak.upgrade() {
            return Ok(code);
        }
        let code = Arc::new(match self.compiler.load(digest) {
            Some(code) => code,
            None => make()?,
        });
        *weak = Arc::downgrade(&code);
        let recent = &mut self.plugins.lock().unwrap_or_else(PoisonError::into_inner).recent;
        recent.push_back(Arc::clone(&code));
        if recent.len() > UNUSED_PLUGINS_MAX {
            recent.pop_front();
        }
        Ok(code)
    }

    /// Compiles on a thread of its own, which ends by itself when it is given up:
    /// the structural limits bound how long that takes.
    fn compile_anew(&self, plugin: &AdmittedPlugin) -> Result<PluginCode, CompileError> {
        let failed = |message: String| CompileError::Failed { plugin: plugin.name.clone(), message };
        let compiler = Arc::clone(&self.compiler);
        let component = Arc::clone(&plugin.component);
        let digest = plugin.digest();
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let started = process_cpu_time();
        std::thread::Builder::new()
            .name("plugin-compile".into())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn(move || {
                let compiled = compiler.compile(digest, &component);
                if sender.send(compiled).is_err() {
                    tracing::warn!(%digest, "a compilation that was given up has ended");
                }
            })
            .map_err(|error| failed(error.to_string()))?;
        let mut waited = Duration::ZERO;
        loop {
            match receiver.recv_timeout(COMPILE_CHECK_INTERVAL) {
                Ok(compiled) => return compiled.map_err(|error| failed(format!("{error:#}"))),
                Err(RecvTimeoutError::Disconnected) => return Err(failed("the compiler panicked".into())),
                Err(RecvTimeoutError::Timeout) => waited += COMPILE_CHECK_INTERVAL,
            }
            // The compiler's threads cannot be told from others, but it cannot have used more
            // than the whole process did; and on an idle machine it needs no more than the time
            // that passed.
            let used = process_cpu_time().saturating_sub(started);
            if used > self.compile_cpu_time && waited > self.compile_cpu_time {
                return Err(CompileError::Limit { plugin: plugin.name.clone(), limit: self.compile_cpu_time });
            }
        }
    }
}

impl Compiler {
    fn load(&self, digest: BlobDigest) -> Option<PluginCode> {
        let cache = self.cache.as_ref()?;
        let code = cache.load(digest)?;
        match deserialize(&self.engine, &code).and_then(|component| self.link(component)) {
            Ok(code) => Some(code),
            Err(error) => {
                tracing::warn!(%digest, %error, "a compiled plugin could not be loaded; compiling it again");
                cache.remove(digest);
                None
            }
        }
    }

    fn compile(&self, digest: BlobDigest, component: &[u8]) -> wasmtime::Result<PluginCode> {
        let component = Component::from_binary(&self.engine, component)?;
        if let Some(cache) = &self.cache
            && let Err(error) = cache.store(digest, &component.serialize()?)
        {
            tracing::warn!(%digest, %error, "could not keep a compiled plugin on disk");
        }
        self.link(component)
    }

    fn link(&self, component: Component) -> wasmtime::Result<PluginCode> {
        let exports = ExportIndices::find(&component)
            .ok_or_else(|| wasmtime::Error::msg("an export of the contract is missing"))?;
        Ok(PluginCode { pre: self.linker.instantiate_pre(&component)?, exports })
    }
}

#[expect(unsafe_code, reason = "the one place where native code from outside the process is trusted")]
fn deserialize(engine: &wasmtime::Engine, code: &AuthenticCode) -> wasmtime::Result<Component> {
    // SAFETY: the bytes must be what `Component::serialize` returned. `AuthenticCode` exists only
    // for bytes that carry a valid MAC under a key that this user's engine made and that only this
    // user can read, for this engine version and these compiler settings; `Compiler::compile` is
    // the only place that has bytes written under the key, and they come from `serialize`. The
    // bytes were read into memory before they were checked, so nobody can change them afterwards.
    unsafe { Component::deserialize(engine, code.as_bytes()) }
}

fn open_cache(directory: &Path, engine: &wasmtime::Engine) -> Option<CodeCache> {
    CodeCache::open(directory, engine)
        .inspect_err(|error| {
            tracing::warn!(directory = %directory.display(), %error, "compiled plugins cannot be kept on disk");
        })
        .ok()
}

fn wasmtime_config(stack_bytes_max: usize) -> wasmtime::Config {
    let mut config = wasmtime::Config::new();
    config
        .strategy(wasmtime::Strategy::Cranelift)
        .cranelift_opt_level(wasmtime::OptLevel::Speed)
        // Replay after a failure, and on another machine, must give the same bits.
        .cranelift_nan_canonicalization(true)
        .concurrency_support(false)
        .epoch_interruption(true)
        .consume_fuel(false)
        .max_wasm_stack(stack_bytes_max)
        .memory_may_move(false)
        // The mark of the running operator is read from the dump's memory; nothing is copied.
        .coredump_on_trap(true)
        .wasm_backtrace_max_frames(NonZeroUsize::new(BACKTRACE_FRAMES_MAX))
        // As in `admission::features`.
        .wasm_simd(true)
        .wasm_relaxed_simd(false)
        .wasm_tail_call(true)
        .wasm_multi_memory(true)
        .wasm_memory64(false)
        .wasm_wide_arithmetic(false)
        .shared_memory(false);
    config
}

fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A plugin that can be instantiated. Keeps the epoch ticker alive.
pub struct CompiledPlugin {
    digest: BlobDigest,
    template: Arc<InstanceTemplate>,
    clock: Clock,
    /// Held so that the runtime finds the code as long as it is in use.
    code: Arc<PluginCode>,
}

impl CompiledPlugin {
    /// SHA-256 of the bytes that were submitted.
    pub fn digest(&self) -> BlobDigest {
        self.digest
    }

    /// File name.
    pub fn name(&self) -> &str {
        &self.template.plugin
    }

    /// True if both were made of one compilation.
    pub fn shares_code_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.code, &other.code)
    }

    /// Runs the program in a fresh instance and returns the graph it declares.
    ///
    /// # Errors
    /// Returns an error if the program refuses the arguments or fails.
    pub fn plan(&self, args: &[String], limits: &SandboxLimits) -> Result<StreamGraph, GuestError> {
        self.instantiate_for_planning(limits)?.plan(args)
    }

    /// What the program is and which arguments it takes, in its own words.
    ///
    /// # Errors
    /// Returns an error if the program fails.
    pub fn describe(&self, limits: &SandboxLimits) -> Result<String, GuestError> {
        self.instantiate_for_planning(limits)?.describe()
    }

    fn instantiate_for_planning(&self, limits: &SandboxLimits) -> Result<Instance, GuestError> {
        let target = PlanTarget { plugin: self.template.plugin.clone() };
        self.instantiate(limits.clone(), 0, CancelFlag::default(), Box::new(target))
    }

    pub(crate) fn instantiate(
        &self,
        limits: SandboxLimits,
        outputs: u32,
        cancel: CancelFlag,
        target: Box<dyn AnyTarget>,
    ) -> Result<Instance, GuestError> {
        let host = Host::new(limits.clone(), outputs, cancel, self.clock.clone(), target);
        Instance::new(&self.template, &limits, host)
    }
}

/// Target while a program is planned: nothing may be emitted, lines go to the engine's log.
struct PlanTarget {
    plugin: String,
}

impl EmitTarget for PlanTarget {
    fn emit(&mut self, _: u32, _: u32, _: &[u8]) -> Result<(), EmitError> {
        Err(EmitError::BadBatch("nothing may be emitted while planning".into()))
    }

    fn emit_watermark(&mut self, _: u32, _: Timestamp) {}

    fn emit_watermark_status(&mut self, _: u32, _: WatermarkStatus) {}

    fn reject_row(&mut self, _: u32, _: Option<u32>, _: &str, _: &[u8]) -> Verdict {
        Verdict::Fail
    }

    fn log(&mut self, level: LogLevel, message: &str) {
        let plugin = self.plugin.as_str();
        match level {
            LogLevel::Trace => tracing::trace!(plugin, "{message}"),
            LogLevel::Debug => tracing::debug!(plugin, "{message}"),
            LogLevel::Info => tracing::info!(plugin, "{message}"),
            LogLevel::Warn => tracing::warn!(plugin, "{message}"),
            LogLevel::Error => tracing::error!(plugin, "{message}"),
        }
    }
}
