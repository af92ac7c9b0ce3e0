//! The socket: accepts connections, bounds their number and time, and guards
//! against pages of other sites that talk to a server on loopback.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
};

use super::{RestServices, RestState, error::RestError, routes};
use crate::base::config::options;

/// What clients may hold; tests choose less.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Connections at the same time; more wait to be accepted.
    pub(crate) connections: usize,
    /// Longest time in which the head of a request must come, and for which a connection may idle.
    pub(crate) header_time: Duration,
}

const CONNECTION_LIMITS: ConnectionLimits = ConnectionLimits { connections: 512, header_time: Duration::from_secs(30) };
/// Longest time from a request's head to the end of its answer, the body's arrival included.
pub(crate) const REQUEST_TIME_MAX: Duration = Duration::from_secs(120);
/// Bytes of a request's head.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 100;
/// How long open requests may go on when the server ends.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);
/// Pause after accepting failed, for example for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The endpoint cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum RestServerError {
    /// Another program listens there.
    #[error("port {} of {} is taken by another program: choose another one with --port or rest.port", address.port(), address.ip())]
    AddressInUse {
        /// Where.
        address: SocketAddr,
    },
    /// Listening failed otherwise.
    #[error("could not listen on {address}; choose another address with --bind or rest.bind-address")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The directory of uploads cannot be used.
    #[error("could not make the directory of uploaded plugins")]
    Storage(#[source] io::Error),
}

/// A running endpoint; dropped without [`RestServer::shutdown`] it ends with the runtime.
#[derive(Debug)]
pub struct RestServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    accept_loop: tokio::task::JoinHandle<()>,
}

impl RestServer {
    /// Listens on `rest.bind-address` and `rest.port`.
    ///
    /// # Errors
    /// Returns an error if the address cannot be listened on.
    pub async fn start(services: RestServices) -> Result<Self, RestServerError> {
        Self::start_with(services, CONNECTION_LIMITS).await
    }

    pub(crate) async fn start_with(services: RestServices, limits: ConnectionLimits) -> Result<Self, RestServerError> {
        let host = services.configuration.get(&options::REST_ADDRESS);
        let port = u16::try_from(services.configuration.get(&options::REST_PORT)).unwrap_or(u16::MAX);
        let listener = TcpListener::bind((host.as_str(), port)).await.map_err(|source| {
            match (source.kind(), host.parse::<IpAddr>()) {
                (io::ErrorKind::AddrInUse, Ok(ip)) => {
                    RestServerError::AddressInUse { address: SocketAddr::new(ip, port) }
                }
                _ => RestServerError::Listen { address: format!("{host}:{port}"), source },
            }
        })?;
        let address = listener
            .local_addr()
            .map_err(|source| RestServerError::Listen { address: format!("{host}:{port}"), source })?;
        let state = RestState::new(services, format!("http://{address}")).map_err(RestServerError::Storage)?;
        let router = routes::router(Arc::new(state));
        let (stop, stopped) = watch::channel(false);
        let accept_loop = tokio::spawn(accept(listener, router, limits, stopped));
        Ok(Self { address, stop, accept_loop })
    }

    /// Where the endpoint listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more requests and waits, for at most some seconds, for those that are being served.
    pub async fn shutdown(self) {
        self.stop.send_replace(true);
        if let Err(error) = self.accept_loop.await {
            tracing::warn!("the REST endpoint ended badly: {error}");
        }
    }
}

async fn accept(listener: TcpListener, router: Router, limits: ConnectionLimits, mut stopped: watch::Receiver<bool>) {
    let permits = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&permits).acquire_owned() => permit.expect("the semaphore is never closed"),
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("REST could not accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (router, stopped) = (router.clone(), stopped.clone());
        connections.spawn(async move {
            serve(stream, router, limits, stopped).await;
            drop(permit);
        });
        // Ended connections are forgotten, so that the set stays small.
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_TIME_MAX, drained).await.is_err() {
        tracing::warn!("REST ended with requests open");
    }
}

async fn serve(stream: TcpStream, router: Router, limits: ConnectionLimits, mut stopped: watch::Receiver<bool>) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_buf_size(HEADER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        _ = stopped.wait_for(|stopped| *stopped) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection to REST ended early: {error}");
    }
}

/// Refuses what a page of another site sends, then serves within the time limit.
pub(crate) async fn guard(State(state): State<Arc<RestState>>, request: Request, next: Next) -> Response {
    if let Err(error) = check_origin(request.headers(), state.url.as_str()) {
        return error.into_response();
    }
    routes::finish(next, request).await
}

/// A browser tells in `Origin` which page sends a request that may change
/// something, and in `Host` what it believes to talk to: a name of another site
/// that was made to point to this machine is refused when listening on loopback.
fn check_origin(headers: &HeaderMap, url: &str) -> Result<(), RestError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let same = origin.parse::<Uri>().ok().and_then(|uri| uri.authority().map(|a| a.as_str().to_owned()));
        if same.as_deref() != Some(host) {
            return Err(RestError::new(
                StatusCode::FORBIDDEN,
                format!("requests of pages from {origin} are not served"),
            ));
        }
    }
    let bound_to_loopback = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(is_loopback)).unwrap_or(false);
    let host_name = host.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default();
    if bound_to_loopback && !host.is_empty() && !is_loopback(&host_name) {
        return Err(RestError::new(
            StatusCode::FORBIDDEN,
            format!("this server listens on loopback and is not \"{host}\""),
        ));
    }
    Ok(())
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(host: &str, origin: Option<&str>, url: &str, allowed: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().expect("a value"));
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().expect("a value"));
        }
        assert_eq!(check_origin(&headers, url).is_ok(), allowed, "{host} {origin:?}");
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let url = "http://127.0.0.1:8081";
        check("127.0.0.1:8081", None, url, true);
        check("localhost:8081", None, url, true);
        check("[::1]:8081", None, url, true);
        check("localhost:8081", Some("http://localhost:8081"), url, true);
        check("localhost:8081", Some("https://evil.example"), url, false);
        check("localhost:8081", Some("http://localhost:3000"), url, false);
        check("localhost:8081", Some("null"), url, false);
        check("evil.example:8081", None, url, false);
        check("evil.example:8081", Some("http://evil.example:8081"), url, false);
        // On other addresses the owner's proxies may call the server by any name.
        check("engine.example", None, "http://10.0.0.1:8081", true);
        check("engine.example", Some("http://engine.example"), "http://10.0.0.1:8081", true);
    }
}
