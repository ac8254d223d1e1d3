//! A terminal that shows one page after the other and tells keys as they are pressed. Dropped, it is as it was before.

use super::page::{Kind, Line, fitted};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, IsTerminal, Read, Write, stdin, stdout};
use tokio::sync::mpsc;

/// An other screen than that of the shell, without a cursor.
const BEGIN: &str = "\x1b[?1049h\x1b[?25l";
const END: &str = "\x1b[?25h\x1b[?1049l";

/// See the module.
pub(super) struct Terminal {
    before: Option<Termios>,
    keys: mpsc::Receiver<u8>,
}

impl Terminal {
    /// Takes the terminal over. `None` where standard output is none.
    pub fn take() -> io::Result<Option<Terminal>> {
        if !stdout().is_terminal() {
            return Ok(None);
        }
        let (tell, keys) = mpsc::channel(16);
        let before = if stdin().is_terminal() { Some(tcgetattr(stdin())?) } else { None };
        if let Some(before) = &before {
            let mut now = before.clone();
            now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            tcsetattr(stdin(), OptionalActions::Now, &now)?;
            // It ends with the process: nothing wakes it but a key.
            let read = move || {
                let each = stdin().lock().bytes().map_while(Result::ok);
                each.for_each(|key| _ = tell.blocking_send(key));
            };
            std::thread::Builder::new().name("keys".to_owned()).spawn(read)?;
        }
        let terminal = Terminal { before, keys };
        write(BEGIN)?;
        Ok(Some(terminal))
    }

    /// Resolves when `q` is pressed.
    pub async fn ends(&mut self) {
        loop {
            match self.keys.recv().await {
                Some(b'q' | b'Q') => return,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Shows what fits of a page.
    pub fn show(&self, lines: &[Line]) -> io::Result<()> {
        let (columns, rows) = size();
        let mut text = "\x1b[H".to_owned();
        for (number, line) in fitted(lines, columns, rows).iter().enumerate() {
            let style = match line.kind {
                Kind::Plain => "",
                Kind::Head => "\x1b[1m",
                Kind::Alarm => "\x1b[31m",
            };
            let next = if number == 0 { "" } else { "\r\n" };
            text += &format!("{next}{style}{}\x1b[0m\x1b[K", line.text);
        }
        write(&(text + "\x1b[J"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Whoever has taken the terminal away sees nothing of it.
        let _ = write(END);
        if let Some(before) = &self.before {
            let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        }
    }
}

fn size() -> (usize, usize) {
    let known = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    known.map_or((80, 24), |size| (usize::from(size.ws_col), usize::from(size.ws_row)))
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
