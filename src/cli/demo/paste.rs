//! Calls to paste into another terminal.

use std::net::SocketAddr;

/// Where client commands look by themselves.
const DEFAULT: &str = "127.0.0.1:50051";

/// A round of calls by grpcurl and by `program`, which is quotad as it was
/// called here, to the server at `address`.
pub(super) fn calls(address: SocketAddr, program: &str) -> String {
    let call =
        |rpc: &str, body: &str| format!("grpcurl -plaintext -d '{body}' {address} quota.v1.{rpc}");
    let other = address.to_string() != DEFAULT;
    let at = if other { format!(" --server {address}") } else { String::new() };
    let lines = [
        String::new(),
        "The server stays up: try it from another terminal. User 7 has 2 of 3 posts left."
            .to_owned(),
        String::new(),
        "# hold one post for ten minutes, then book it".to_owned(),
        call(
            "QuotaService/Reserve",
            r#"{"namespace":"blog","reservation_id":"mine-1","items":[{"metric":"posts"}],"dimensions":{"user":"7"},"ttl":"600s"}"#,
        ),
        call("QuotaService/Commit", r#"{"namespace":"blog","reservation_id":"mine-1"}"#),
        "# where user 7 stands".to_owned(),
        call(
            "QuotaService/GetUsage",
            r#"{"namespace":"blog","metric":"posts","dimensions":{"user":"7"}}"#,
        ),
        "# what a refusal looks like: 9 are not left".to_owned(),
        call(
            "QuotaService/Reserve",
            r#"{"namespace":"blog","reservation_id":"mine-2","items":[{"metric":"posts","amount":9}],"dimensions":{"user":"7"}}"#,
        ),
        "# an upgrade, as a billing system tells of it".to_owned(),
        call(
            "PolicyService/PutSubject",
            r#"{"namespace":"blog","subject":{"kind":"user","id":"7","plan":"pro"}}"#,
        ),
        String::new(),
        "# the same by quotad".to_owned(),
        format!("{program} reserve -n blog posts -d user=7 --id mine-3 --ttl 10m{at}"),
        format!("{program} commit -n blog mine-3{at}"),
        format!("{program} usage -n blog posts -d user=7{at}"),
        format!("{program} check -n blog posts=200 -d user=7{at}"),
        format!("{program} subject set -n blog user/7 --plan basic{at}"),
        String::new(),
        "Ctrl-C ends it.".to_owned(),
    ];
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_of_its_own_is_named_in_every_call() {
        let own = calls("127.0.0.1:4000".parse().unwrap(), "target/release/quotad");
        assert_eq!(own.matches(" 127.0.0.1:4000 quota.v1.").count(), 5, "{own}");
        assert_eq!(own.matches("target/release/quotad ").count(), 5, "{own}");
        assert_eq!(own.matches(" --server 127.0.0.1:4000").count(), 5, "{own}");
        assert!(!calls(DEFAULT.parse().unwrap(), "quotad").contains("--server"));
    }
}
