//! A web server that is not to be trusted.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// Listens on `localhost` until the test ends.
pub fn site() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            std::thread::spawn(move || answer(socket.unwrap()));
        }
    });
    port
}

/// The client may hang up at any time; the tests show that it does.
fn answer(mut socket: TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).is_ok_and(|read| read == 1) {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or("").trim_start_matches('/');
    let moved = |to: &str| format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
    let text = match path {
        "elsewhere" => moved("http://evil.example/a.wav"),
        "to-file" => moved("file:///etc/passwd"),
        "to-metadata" => moved("http://169.254.169.254/latest/meta-data/"),
        "round" => moved("/round"),
        "text" => "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nnot a sound.".to_owned(),
        "cut" => "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nRIFF".to_owned(),
        "endless" => "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
        "silence" => String::new(),
        _ => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(),
    };
    let _ = socket.write_all(text.as_bytes());
    match path {
        "endless" => while socket.write_all(&[0; 65_536]).is_ok() {},
        // Until the other side has had enough.
        "silence" => drop(socket.read(&mut byte)),
        _ => {}
    }
}
