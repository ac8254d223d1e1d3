//! Lets a request in, or refuses it. `keys` says whose it is; the table in `routes` says which routes answer without a key.

use super::connection::ConnectionGuard;
use super::error::ApiError;
use super::keys::key;
use super::state::App;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use omni_engine::Tenant;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Who may use a route of a server that has keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everyone; details are for those with a key.
    Open,
    /// Those with a key.
    Key,
}

/// Whose request it is, as handlers see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub tenant: Tenant,
    /// Has a key, or the server has none.
    pub trusted: bool,
}

/// Whose share a request takes.
pub(super) fn caller(request: &Request) -> Tenant {
    // Every request has passed the middleware.
    request.extensions().get::<Caller>().map(|caller| caller.tenant).unwrap_or_default()
}

/// The middleware. The [`Access`] of the route comes with the request; without one it is [`Access::Key`].
pub(super) async fn auth(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let address = request.extensions().get::<ConnectionGuard>().map(ConnectionGuard::address);
    // Every connection has one.
    let address = address.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let caller = app.keys.caller(request.headers(), address);
    if caller.is_none() && request.extensions().get::<Access>() != Some(&Access::Open) {
        app.metrics.unauthorized.increment(1);
        return refuse(key(request.headers()).is_some());
    }
    let trusted = caller.is_some();
    request.extensions_mut().insert(Caller { tenant: caller.unwrap_or_default(), trusted });
    next.run(request).await
}

fn refuse(has_key: bool) -> Response {
    let message = if has_key {
        "this API key is not one of this server's"
    } else {
        "this server asks for an API key; send it as Authorization: Bearer KEY"
    };
    let mut response = ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message).into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}
