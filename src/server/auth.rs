//! Lets a request in, or refuses it. `origin` says to which names and from which pages, `keys` whose it is; the table in
//! `routes` says which routes answer without a key, and which scope the others need.

use super::body::discard;
use super::error::ApiError;
use super::keys::{Holder, key};
use super::origin::Guest;
use super::quota::Key;
use super::rules::Rules;
use super::secrets::{PREFIX, Secret, Unusable};
use super::state::{App, unix_seconds};
use super::visit::Visit;
use super::watched::{Watch, watched};
use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use omni_config::Scope;
use omni_core::admission::TenantId;
use omni_engine::Tenant;
use std::sync::Arc;
use std::time::Duration;

/// The routes that client secrets are for, and what is below the second.
const OPENED_BY_SECRETS: [&str; 2] = ["/v1/realtime", "/v1/realtime/calls"];

/// Who may use a route of a server that has keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everyone; details are for those with a key.
    Open,
    /// Those with a key, whatever it is for.
    Key,
    /// Those with a key that is for one of these, or for anything where there are none; everyone where the config opens
    /// lists.
    List(&'static [Scope]),
    /// Those with a key that is for one of these.
    Scope(&'static [Scope]),
}

/// What the table says of a request: who may send it, and what it counts as among the requests of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub access: Access,
    /// Whether it is one of those that `requests_per_minute` limits.
    pub counts: bool,
    /// Whether it asks for speech.
    pub speaks: bool,
}

impl Asked {
    /// What is in no table.
    pub const NOTHING: Asked = Asked { access: Access::Key, counts: false, speaks: false };
}

/// Whose request it is, as handlers see it.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub tenant: Tenant,
    /// Has a key that is for this, or the server has none.
    pub trusted: bool,
    pub visit: Arc<Visit>,
}

impl Caller {
    /// Whether a key may do this; without keys every client may.
    pub fn may(&self, scope: Scope) -> bool {
        self.visit.key().is_none_or(|key| key.has(&[scope]))
    }

    /// The name of its key.
    pub fn key_name(&self) -> Option<&str> {
        self.visit.key().map(|key| key.name())
    }

    /// Whose an answer to it is, on a server with keys.
    pub fn owner(&self) -> Option<TenantId> {
        self.visit.key().map(|_| self.tenant.id)
    }

    /// An utterance of a session begins.
    pub fn begin(&self) -> Result<(), ApiError> {
        self.visit.key().map_or(Ok(()), |key| key.begin().and_then(|()| key.may_send(0)).and_then(|()| key.may_speak()))
    }

    /// Whether its key may make speech now.
    pub fn may_speak(&self) -> Result<(), ApiError> {
        self.visit.key().map_or(Ok(()), |key| key.may_speak())
    }

    /// A message of a session came; an error once the key may send no more.
    pub fn sent(&self, bytes: usize) -> Result<(), ApiError> {
        let Some(key) = self.visit.key() else { return Ok(()) };
        let may = key.may_send(0);
        key.sent(bytes as u64);
        may
    }

    /// Speech was made for it.
    pub fn spoke(&self, samples: usize, sample_rate: u32) {
        if let Some(key) = self.visit.key() {
            key.spoke(Duration::from_secs_f64(samples as f64 / f64::from(sample_rate.max(1))));
        }
    }
}

/// The middleware. What the table says of the route comes with the request; without that it is [`Asked::NOTHING`].
pub(super) async fn auth(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let rules = app.rules.get();
    let guest = match rules.sites.check(request.uri(), request.headers()) {
        Ok(guest) => guest,
        Err(error) => return refused(request, error).await,
    };
    // A browser asks without a key.
    let question = guest.as_ref().and_then(|_| Guest::preflight(request.method(), request.headers()));
    let mut response = match question {
        Some(answer) => answer,
        None => match admit(&app, &rules, &mut request) {
            Ok(()) => next.run(request).await,
            Err(error) => refused(request, error).await,
        },
    };
    if let Some(guest) = guest {
        guest.admit(&mut response);
    }
    response
}

/// The answer to a request that goes no further.
async fn refused(request: Request, error: ApiError) -> Response {
    discard(request).await;
    error.into_response()
}

/// The middleware of an address that only this machine reaches: names and pages count there too, keys do not.
pub(super) async fn trust(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    if let Err(error) = app.rules.get().sites.strict().check(request.uri(), request.headers()) {
        return error.into_response();
    }
    if let Some(visit) = request.extensions().get::<Arc<Visit>>().cloned() {
        request.extensions_mut().insert(Caller { tenant: Tenant::default(), trusted: true, visit });
    }
    next.run(request).await
}

/// Gives a request that may go on its caller.
fn admit(app: &App, rules: &Rules, request: &mut Request) -> Result<(), ApiError> {
    let asked = request.extensions().get::<Asked>().copied().unwrap_or(Asked::NOTHING);
    // The middleware before this one sets it.
    let visit = request.extensions().get::<Arc<Visit>>().cloned();
    let visit = visit.ok_or_else(|| ApiError::internal("a request without a visit"))?;
    let open = asked.access == Access::Open || (rules.open_lists && matches!(asked.access, Access::List(_)));
    let (holder, secret) = holder(app, rules, request, &visit)?;
    if let Some(secret) = secret {
        request.extensions_mut().insert(secret);
    }
    let (tenant, trusted) = match holder {
        Some(Holder::Address(tenant)) => (tenant, true),
        Some(Holder::Key(key)) => {
            if !open {
                charge(&key, asked, &visit, request.body().size_hint().lower())?;
                let body = std::mem::take(request.body_mut());
                *request.body_mut() = watched(body, Arc::clone(&key));
            }
            // An open list tells a key that is not for it what it tells everyone.
            let trusted = match asked.access {
                Access::List(scopes) => scopes.is_empty() || key.has(scopes),
                _ => true,
            };
            (key.tenant(), trusted)
        }
        None if open => (Tenant::default(), false),
        None => {
            app.metrics.unauthorized.increment(1);
            return Err(unauthorized(key(request.headers()).is_some()));
        }
    };
    request.extensions_mut().insert(Caller { tenant, trusted, visit });
    Ok(())
}

/// Whose request it is, if anybody's: with a client secret that of the key that made it.
fn holder(
    app: &App,
    rules: &Rules,
    request: &Request,
    visit: &Visit,
) -> Result<(Option<Holder>, Option<Arc<Secret>>), ApiError> {
    let by_key = || rules.keys.caller(request.headers(), visit.address());
    let Some(value) = key(request.headers()).filter(|key| key.starts_with(PREFIX)) else { return Ok((by_key(), None)) };
    let refuse = |message: &str| {
        app.metrics.unauthorized.increment(1);
        Err(ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message))
    };
    match app.secrets.find(value, unix_seconds()) {
        Ok(_) if !is_opened_by_secrets(request.uri().path()) => {
            refuse("a client secret opens WS /v1/realtime and POST /v1/realtime/calls, and nothing else")
        }
        Ok(secret) => Ok((rules.keys.named(secret.key.as_deref(), visit.address()), Some(secret))),
        Err(Unusable::Expired) => {
            refuse("this client secret has expired; POST /v1/realtime/client_secrets makes another")
        }
        // A server without keys takes any.
        Err(Unusable::Unknown) => Ok((by_key(), None)),
    }
}

fn is_opened_by_secrets(path: &str) -> bool {
    let below = path.strip_prefix(OPENED_BY_SECRETS[1]).is_some_and(|rest| rest.starts_with('/'));
    OPENED_BY_SECRETS.contains(&path) || below
}

/// Holds a request to the limits and scopes of its key.
fn charge(key: &Arc<Key>, asked: Asked, visit: &Visit, bytes: u64) -> Result<(), ApiError> {
    let connected = key.connect();
    let refused = connected.as_ref().err().cloned();
    visit.belongs_to(Arc::clone(key), connected.ok());
    if let Some(refused) = refused {
        return Err(refused);
    }
    if asked.counts {
        key.begin()?;
        key.may_send(bytes)?;
    }
    match asked.access {
        Access::Scope(scopes) | Access::List(scopes) if !scopes.is_empty() => key.check(scopes)?,
        _ => {}
    }
    if asked.speaks { key.may_speak() } else { Ok(()) }
}

fn unauthorized(has_key: bool) -> ApiError {
    let message = if has_key {
        "this API key is not one of this server's"
    } else {
        "this server asks for an API key; send it as Authorization: Bearer KEY"
    };
    ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
}

/// Of the body of a request with a key.
impl Watch for Arc<Key> {
    fn passed(&self, bytes: usize) {
        self.sent(bytes as u64);
    }
}
