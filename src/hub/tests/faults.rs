//! Each way in which a server fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::server::{Answer, Server, honest, whole};
use super::*;

#[test]
fn a_good_server_is_asked_once_for_each_part() {
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |ask| honest(ask, &file, ETAG));
    let events = setup.pull_right(&server);
    let asks = server.asks();
    let mut parts = parts_asked(&asks);
    parts.sort_unstable();
    assert_eq!(parts, (0..PARTS).collect::<Vec<_>>());
    assert_eq!(server.sent(), SIZE as u64);
    assert_eq!(asks[0].path, "/someone/Test-GGUF/resolve/0123456789012345678901234567890123456789/test.gguf");
    assert_eq!(asks[0].if_range, None, "nothing is known yet");
    assert!(asks[1..].iter().all(|ask| ask.if_range.as_deref() == Some(ETAG)));
    assert!(events.contains(&Event::Started { kept: 0, total: SIZE as u64 }));
    assert_eq!(file_names(&setup.folder()), ["test.gguf", "test.gguf.lock"]);
    // Now it is here: no request, and not even a look at the bytes.
    let events = setup.pull_right(&server);
    assert_eq!((server.asks().len(), events), (PARTS, vec![]));
}

#[test]
fn a_host_with_a_folder_is_a_mirror_too() {
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |ask| honest(ask, &file, ETAG));
    pull(&setup.hub(&format!("{}/mirrors/hub/", server.host))).0.unwrap();
    assert!(server.asks()[0].path.starts_with("/mirrors/hub/someone/Test-GGUF/resolve/"));
}

#[test]
fn dropped_connections_go_on_at_the_byte_where_they_ended() {
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |ask| {
        let answer = honest(ask, &file, ETAG);
        match ask.index % 3 {
            0 => answer.cut(PART / 2 + 7),
            // Not even an answer.
            1 if ask.index % 2 == 0 => Answer { silent: true, ..answer },
            _ => answer,
        }
    });
    let events = setup.pull_right(&server);
    assert_eq!(server.sent(), SIZE as u64, "no byte came twice");
    assert!(events.iter().any(|event| matches!(event, Event::Retrying { .. })));
}

#[test]
fn a_server_without_ranges_is_read_in_one_go() {
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |_| whole(&file, ETAG));
    let events = setup.pull_right(&server);
    assert_eq!(server.asks().len(), 1);
    assert!(events.contains(&Event::Whole));
    // The same without a length.
    let setup = Setup::new();
    let file = setup.file.clone();
    server.then(move |_| whole(&file, ETAG).with("Transfer-Encoding", "chunked"));
    setup.pull_right(&server);
    assert_eq!(server.asks().len(), 1);
}

#[test]
fn a_server_without_ranges_that_drops_connections() {
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |ask| match ask.index {
        0 => whole(&file, ETAG).cut(5 * PART + 100),
        1 => whole(&file, ETAG).cut(9 * PART + 100),
        _ => whole(&file, ETAG),
    });
    setup.pull_right(&server);
    // It is asked for what is missing, though it does not listen.
    let starts: Vec<usize> = server.asks().iter().map(|ask| ask.range.clone().unwrap().start).collect();
    assert_eq!(starts, [0, 5 * PART, 9 * PART]);
}

#[test]
fn a_server_that_stops_or_starts_to_know_ranges() {
    for change in 1..4 {
        for knows_first in [true, false] {
            let setup = Setup::new();
            let file = setup.file.clone();
            let server = Server::start(move |ask| {
                if (ask.index < change) == knows_first {
                    honest(ask, &file, ETAG)
                } else {
                    // Cut, so that it is asked again.
                    whole(&file, ETAG).cut(7 * PART + ask.index * 100)
                }
            });
            if knows_first {
                // It never gets past part 7 again, so this cannot succeed; what is finished stays.
                let error = setup.pull_wrong(&server);
                assert!(matches!(error, HubError::GaveUp { .. }), "{error}");
                assert!(setup.finished().len() >= 7, "{:?}", setup.finished());
                let finished = setup.finished();
                let file = setup.file.clone();
                server.then(move |ask| honest(ask, &file, ETAG));
                setup.pull_right(&server);
                assert!(parts_asked(&server.asks()).iter().all(|part| !finished.contains(part)));
            } else {
                setup.pull_right(&server);
            }
        }
    }
}

#[test]
fn lies_about_the_length() {
    let short = SIZE as u64 - 1;
    // The server has a file of another size, and says so in each way there is.
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |ask| honest(ask, &file[..SIZE - 1], ETAG));
    let error = setup.pull_wrong(&server);
    assert!(matches!(error, HubError::WrongSize { found, .. } if found == short), "{error}");
    let file = setup.file.clone();
    server.then(move |_| whole(&file[..SIZE - 1], ETAG));
    let error = setup.pull_wrong(&server);
    assert!(matches!(error, HubError::WrongSize { found, .. } if found == short), "{error}");
    server.then(|_| Answer::status(416).with("Content-Range", "bytes */0"));
    let error = setup.pull_wrong(&server);
    assert!(matches!(error, HubError::WrongSize { found: 0, .. }), "{error}");
    // Shorter than the file, without a length: all there is, again and again.
    let file = setup.file.clone();
    server.then(move |_| whole(&file[..SIZE - 1], ETAG).with("Transfer-Encoding", "chunked"));
    let error = setup.pull_wrong(&server);
    assert!(matches!(error, HubError::GaveUp { .. }), "{error}");
}

#[test]
fn lies_about_the_length_that_can_be_worked_around() {
    type Lie = fn(Answer, usize) -> Answer;
    let lies: [(&str, Lie); 6] = [
        ("a length longer than the body", |answer, _| {
            let longer = answer.body.len() + 1000;
            answer.with("Content-Length", longer)
        }),
        ("a length shorter than the range", |answer, _| {
            let half = answer.body.len() / 2;
            answer.with("Content-Length", half)
        }),
        ("a range shorter than asked", |mut answer, start| {
            let half = answer.body.len().div_ceil(2);
            answer.body.truncate(half);
            answer.with("Content-Range", format!("bytes {start}-{}/{SIZE}", start + half - 1))
        }),
        ("more bytes than asked", |mut answer, start| {
            answer.body.extend([0; 500]);
            let end = start + answer.body.len() - 1;
            answer.with("Content-Range", format!("bytes {start}-{end}/{SIZE}"))
        }),
        ("a total of *", |answer, start| {
            let end = start + answer.body.len() - 1;
            answer.with("Content-Range", format!("bytes {start}-{end}/*"))
        }),
        ("no length", |answer, _| answer.with("Transfer-Encoding", "chunked")),
    ];
    for (name, lie) in lies {
        let setup = Setup::new();
        let file = setup.file.clone();
        let server = Server::start(move |ask| {
            let answer = honest(ask, &file, ETAG);
            let start = ask.range.clone().unwrap().start;
            // Always would be a server that never delivers.
            if ask.index % 2 == 0 { lie(answer, start) } else { answer }
        });
        println!("{name}");
        setup.pull_right(&server);
    }
}

#[test]
fn ranges_of_other_places_are_not_taken() {
    type Lie = fn(Answer, usize) -> Answer;
    let lies: [(&str, Lie); 4] = [
        ("other bytes", |answer, start| answer.with("Content-Range", format!("bytes {}-{}/{SIZE}", start + 1, start + PART))),
        ("no word about which", |answer, _| answer.without("Content-Range")),
        ("nonsense", |answer, _| answer.with("Content-Range", "bytes 5-4/x")),
        ("compressed", |answer, _| answer.with("Content-Encoding", "gzip")),
    ];
    for (name, lie) in lies {
        let setup = Setup::new();
        let file = setup.file.clone();
        let server = Server::start(move |ask| {
            let answer = honest(ask, &file, ETAG);
            let start = ask.range.clone().unwrap().start;
            if ask.index % 2 == 0 { lie(answer, start) } else { answer }
        });
        println!("{name}");
        setup.pull_right(&server);
        let setup = Setup::new();
        let file = setup.file.clone();
        server.then(move |ask| lie(honest(ask, &file, ETAG), ask.range.clone().unwrap().start));
        let error = setup.pull_wrong(&server);
        assert!(matches!(error, HubError::GaveUp { attempts: 4, .. }), "{error}");
    }
}

#[test]
fn a_file_that_changes_on_the_server_begins_anew() {
    let setup = Setup::new();
    let (file, old) = (setup.file.clone(), noise(2));
    // Six answers from another file of the same size, then the right one under another ETag.
    let server = Server::start(move |ask| if ask.index < 6 { honest(ask, &old, "\"old\"") } else { honest(ask, &file, ETAG) });
    let events = setup.pull_right(&server);
    assert_eq!(events.iter().filter(|event| **event == Event::Restarted).count(), 1);
    // The same where the server leaves If-Range out of account and sends ranges of the new file.
    let setup = Setup::new();
    let (file, old) = (setup.file.clone(), noise(2));
    server.then(move |ask| {
        let ask = Ask { if_range: None, ..ask.clone() };
        if ask.index < 6 { honest(&ask, &old, "\"old\"") } else { honest(&ask, &file, ETAG) }
    });
    let events = setup.pull_right(&server);
    assert_eq!(events.iter().filter(|event| **event == Event::Restarted).count(), 1);
}

#[test]
fn a_file_that_never_stays_the_same_is_given_up() {
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |ask| honest(ask, &file, &format!("\"{}\"", ask.index)));
    let error = setup.pull_wrong(&server);
    assert!(matches!(error, HubError::Changing { .. }), "{error}");
    assert!(server.asks().len() <= 3 * 8, "{} requests", server.asks().len());
    // A weak ETag is no promise about bytes: it is compared, but not used as a condition.
    let file = setup.file.clone();
    server.then(move |ask| honest(ask, &file, "W/\"weak\""));
    setup.pull_right(&server);
    assert!(server.asks().iter().all(|ask| ask.if_range.is_none()));
}

#[test]
fn wrong_bytes_never_get_the_name() {
    let setup = Setup::new();
    let mut bad = setup.file.to_vec();
    bad[SIZE / 2] ^= 1;
    let server = Server::start(move |ask| honest(ask, &bad, ETAG));
    let error = setup.pull_wrong(&server);
    assert!(matches!(error, HubError::WrongBytes { .. }), "{error}");
    assert_eq!(error.exit_code(), 3);
    assert!(!setup.part().exists() && !setup.journal().exists(), "nothing of it is kept");
    let file = setup.file.clone();
    server.then(move |ask| honest(ask, &file, ETAG));
    setup.pull_right(&server);
    assert_eq!(server.sent(), SIZE as u64);
}

#[test]
fn redirects_keep_the_range() {
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |ask| {
        if ask.path.starts_with("/someone") {
            // The hub's own answer carries another ETag than the store's.
            Answer::status(302).with("Location", "/store?signed=1&x=%2F").with("ETag", "\"hub\"")
        } else {
            honest(ask, &file, ETAG)
        }
    });
    setup.pull_right(&server);
    let stored: Vec<Ask> = server.asks().into_iter().filter(|ask| ask.path == "/store?signed=1&x=%2F").collect();
    assert_eq!(stored.len(), PARTS);
    assert_eq!(server.sent(), SIZE as u64);
    // To another host, which never hears of the first one.
    let setup = Setup::new();
    let file = setup.file.clone();
    let store = Server::start(move |ask| honest(ask, &file, ETAG));
    let place = format!("{}/blob", store.host);
    server.then(move |_| Answer::status(302).with("Location", &place));
    setup.pull_right(&server);
    assert_eq!((store.asks().len(), store.sent()), (PARTS, SIZE as u64));
    let setup = Setup::new();
    server.then(|ask| Answer::status(307).with("Location", format!("/again{}", ask.index)));
    let error = setup.pull_wrong(&server);
    assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
    assert!(server.asks().len() < 20);
}

#[test]
fn passing_trouble_is_waited_for() {
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |ask| match ask.index % 4 {
        0 => Answer::status(503),
        1 => Answer::status(429).with("Retry-After", 0),
        _ => honest(ask, &file, ETAG),
    });
    setup.pull_right(&server);
    assert_eq!(server.sent(), SIZE as u64);
    let setup = Setup::new();
    let file = setup.file.clone();
    server.then(move |ask| if ask.index == 0 { Answer::status(503).with("Retry-After", 1) } else { honest(ask, &file, ETAG) });
    let start = Instant::now();
    setup.pull_right(&server);
    assert!(start.elapsed() >= Duration::from_secs(1), "the server's wish counts");
}

#[test]
fn lasting_trouble_is_given_up_and_keeps_what_is_there() {
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |ask| if ask.index < 8 { honest(ask, &file, ETAG) } else { Answer::status(500) });
    let error = setup.pull_wrong(&server);
    assert!(matches!(&error, HubError::GaveUp { why, .. } if why.contains("500")), "{error}");
    let finished = setup.finished();
    assert!(finished.len() >= 5, "{finished:?}");
    let file = setup.file.clone();
    server.then(move |ask| honest(ask, &file, ETAG));
    setup.pull_right(&server);
    assert!(parts_asked(&server.asks()).iter().all(|part| !finished.contains(part)));
}

#[test]
fn refusals_are_final_and_in_words() {
    for (status, words) in
        [(404, "does not exist"), (410, "does not exist"), (401, "may not be fetched"), (403, "may not be fetched"), (418, "status 418")]
    {
        let setup = Setup::new();
        let server = Server::start(move |_| Answer::status(status));
        let error = setup.pull_wrong(&server);
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!((server.asks().len(), error.exit_code()), (1, 3), "{status}");
    }
    let setup = Setup::new();
    let server = Server::start(|_| {
        let mut page = Answer::status(200).with("Content-Type", "text/html; charset=utf-8");
        page.body = b"<html>Sign in to this hotel".to_vec();
        page
    });
    let error = setup.pull_wrong(&server);
    assert!(matches!(error, HubError::WebPage { .. }), "{error}");
}

#[test]
fn a_connection_that_hangs_is_given_up() {
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |ask| {
        let answer = honest(ask, &file, ETAG);
        if ask.index == 2 { Answer { hang: Duration::from_secs(20), ..answer.cut(1000) } } else { answer }
    });
    let start = Instant::now();
    let hub = setup.hub_with(&server.host, PullOptions { stall: Duration::from_millis(300), ..quick() });
    pull(&hub).0.unwrap();
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    assert_eq!(server.sent(), SIZE as u64);
}

#[test]
fn nobody_there() {
    let setup = Setup::new();
    // A port that was free a moment ago.
    let host = format!("http://{}", std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let error = setup.pull_wrong_with(&host, quick());
    assert!(matches!(error, HubError::GaveUp { attempts: 4, .. }), "{error}");
    // A server that does not speak TLS.
    let server = Server::start(|_| Answer::status(200));
    let error = setup.pull_wrong_with(&server.host.replace("http:", "https:"), quick());
    assert!(matches!(error, HubError::GaveUp { .. } | HubError::Unreachable { .. }), "{error}");
    let error = setup.pull_wrong_with("http://no-such-host.invalid", PullOptions { attempts: 1, ..quick() });
    assert!(matches!(error, HubError::GaveUp { attempts: 1, .. }), "{error}");
}

#[test]
fn a_full_disk_keeps_what_is_there() {
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |ask| honest(ask, &file, ETAG));
    let error = setup.pull_wrong_with(&server.host, PullOptions { disk: 9 * PART as u64, connections: 1, ..quick() });
    assert!(matches!(error, HubError::DiskFull { needed, .. } if needed == (SIZE - 9 * PART) as u64), "{error}");
    assert_eq!(setup.finished().len(), 9);
    server.then({
        let file = setup.file.clone();
        move |ask| honest(ask, &file, ETAG)
    });
    setup.pull_right(&server);
    assert_eq!(parts_asked(&server.asks()).len(), PARTS - 9);
}

#[test]
fn one_model_fetched_by_several_at_once_comes_once() {
    let setup = Setup::new();
    let file = setup.file.clone();
    let server = Server::start(move |ask| Answer { pace: Duration::from_millis(5), ..honest(ask, &file, ETAG) });
    let waited = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let (result, events) = pull(&setup.hub(&server.host));
                result.unwrap();
                waited.fetch_add(usize::from(events.contains(&Event::Waiting)), Ordering::SeqCst);
            });
        }
    });
    assert_eq!(server.sent(), SIZE as u64);
    assert_eq!(waited.load(Ordering::SeqCst), 2);
    assert!(std::fs::read(setup.path()).unwrap() == *setup.file);
}
