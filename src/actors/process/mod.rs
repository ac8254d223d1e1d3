//! A stage in a process of its own, seen from both sides.
//!
//! ```text
//!  parent                                             child: the same binary, `omni-actors stage`
//!  StageHandle -- RemoteStage --> Outbox --- down ---> StageHandle of the real stage, and its inbound edge
//!  next edge, AckSink, reports <------------- up ----- Outbox <-- its outbound edges, acks, reports, status
//!  ProcessSupervisor: spawns, sets up, watches, ends and replaces the child
//! ```
//!
//! One [`link`] joins the two, with one order per direction: an admission can never be overtaken by its payloads. The
//! actors on either side do not notice: where the stage is a process, its [`StageHandle`](super::StageHandle) speaks to a
//! `RemoteStage`, and the edge that leads into it is an [`IntoStage`].

pub mod link;
pub mod message;
mod remote;
mod spawn;
mod supervisor;

pub use remote::IntoStage;
pub(super) use remote::RemoteStage;
pub use supervisor::{ProcessSetup, start};
