//! To which call a packet belongs whose sender is not known yet.

/// The head of a message of STUN.
const HEAD: usize = 20;
/// A request for a check of connectivity.
const BINDING: [u8; 2] = [0, 1];
/// RFC 8489, in every message.
const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
/// The attribute with the names of both sides.
const USERNAME: u16 = 6;

/// The name of the side that a check of ICE calls, where the packet is such a check. Nothing says yet that its sender
/// knows the password: that, the call finds out.
pub fn called(packet: &[u8]) -> Option<&str> {
    let (head, mut rest) = packet.split_at_checked(HEAD)?;
    if head[..2] != BINDING || head[4..8] != COOKIE {
        return None;
    }
    loop {
        let (&[a, b, c, d], after) = rest.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes([c, d]));
        let value = after.get(..length)?;
        if u16::from_be_bytes([a, b]) == USERNAME {
            return std::str::from_utf8(value).ok()?.split_once(':').map(|(called, _)| called);
        }
        rest = after.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(name: &str) -> Vec<u8> {
        let mut packet = vec![0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42];
        packet.extend([7; 12]);
        // Another attribute in front, of 5 bytes and padding.
        packet.extend([0x80, 0x22, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0]);
        packet.extend([0, 6, 0, name.len() as u8]);
        packet.extend(name.bytes());
        packet
    }

    #[test]
    fn a_check_names_whom_it_calls() {
        assert_eq!(called(&check("server:client")), Some("server"));
        assert_eq!(called(&check("server")), None);
        let mut answer = check("server:client");
        answer[0] = 1;
        assert_eq!(called(&answer), None);
    }

    proptest! {
        #[test]
        fn nothing_does_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..100), is_check: bool) {
            if is_check {
                bytes.splice(..0, check("a:b")[..20].to_vec());
            }
            let _ = called(&bytes);
        }
    }
}
