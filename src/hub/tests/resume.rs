//! Going on after whatever ended an earlier run.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::server::{Answer, Server, honest};
use super::*;

/// The environment variable that turns the test `the_one_that_is_killed` into a download.
const KILLED: &str = "SEMIF_TEST_KILLED";

fn slow_server(setup: &Setup) -> Server {
    let file = setup.file.clone();
    Server::start(move |ask| Answer { pace: Duration::from_millis(10), ..honest(ask, &file, ETAG) })
}

/// A setup with about half of the parts finished.
fn half(setup: &Setup, server: &Server) -> BTreeSet<usize> {
    let error = setup
        .hub(&server.host)
        .pull(ID, &mut |event| match event {
            Event::Fetching { done, .. } if done > SIZE as u64 / 3 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
        .unwrap_err();
    assert!(matches!(error, HubError::Interrupted), "{error}");
    assert_eq!(error.exit_code(), 130);
    assert!(!setup.path().exists());
    let finished = setup.finished();
    assert!((1..PARTS).contains(&finished.len()), "{finished:?}");
    finished
}

/// Finishes at a good server; the parts that were asked for.
fn finish(setup: &Setup, server: &Server) -> BTreeSet<usize> {
    let file = setup.file.clone();
    server.then(move |ask| honest(ask, &file, ETAG));
    setup.pull_right(server);
    let asked = parts_asked(&server.asks());
    let once: BTreeSet<usize> = asked.iter().copied().collect();
    assert_eq!(once.len(), asked.len(), "a part was asked for twice");
    once
}

fn missing(finished: &BTreeSet<usize>) -> BTreeSet<usize> {
    (0..PARTS).filter(|part| !finished.contains(part)).collect()
}

#[test]
fn a_stopped_download_goes_on() {
    let setup = Setup::new();
    let server = slow_server(&setup);
    let finished = half(&setup, &server);
    assert_eq!(finish(&setup, &server), missing(&finished));
    assert_eq!(server.asks()[0].if_range.as_deref(), Some(ETAG), "the first request already has the condition");
}

#[test]
fn another_part_size_goes_on_with_the_old_one() {
    let setup = Setup::new();
    let server = slow_server(&setup);
    let finished = half(&setup, &server);
    let file = setup.file.clone();
    server.then(move |ask| honest(ask, &file, ETAG));
    pull(&setup.hub_with(&server.host, PullOptions { part_bytes: 1 << 20, ..quick() })).0.unwrap();
    assert!(parts_asked(&server.asks()).iter().all(|part| !finished.contains(part)));
    assert!(std::fs::read(setup.path()).unwrap() == *setup.file);
}

#[test]
fn another_file_on_the_server_begins_anew() {
    let setup = Setup::new();
    let server = slow_server(&setup);
    half(&setup, &server);
    // The same bytes under a new ETag: nobody can know, so the old parts do not count.
    let file = setup.file.clone();
    server.then(move |ask| honest(ask, &file, "\"second\""));
    let events = setup.pull_right(&server);
    assert!(events.contains(&Event::Restarted));
    // Other bytes under the old ETag: the hash finds it.
    let setup = Setup::new();
    let server = slow_server(&setup);
    half(&setup, &server);
    server.then(|ask| honest(ask, &noise(3), ETAG));
    assert!(matches!(setup.pull_wrong(&server), HubError::WrongBytes { .. }));
}

#[test]
fn damage_costs_the_damaged_parts_only() {
    let setup = Setup::new();
    let server = slow_server(&setup);
    let finished = half(&setup, &server);
    let victim = *finished.first().unwrap();
    let mut bytes = std::fs::read(setup.part()).unwrap();
    bytes[victim * PART + 5] ^= 0x80;
    std::fs::write(setup.part(), &bytes).unwrap();
    let kept: BTreeSet<usize> = finished.into_iter().filter(|&part| part != victim).collect();
    assert_eq!(finish(&setup, &server), missing(&kept));
}

#[test]
fn a_cut_or_missing_part_file_costs_what_is_lost() {
    for cut in [true, false] {
        let setup = Setup::new();
        let server = slow_server(&setup);
        let finished = half(&setup, &server);
        let kept: BTreeSet<usize> = if cut {
            let half = finished.len() / 2;
            let end = *finished.iter().nth(half).unwrap();
            let file = std::fs::File::options().write(true).open(setup.part()).unwrap();
            file.set_len((end * PART + 17) as u64).unwrap();
            finished.iter().copied().take(half).collect()
        } else {
            std::fs::remove_file(setup.part()).unwrap();
            BTreeSet::new()
        };
        assert_eq!(finish(&setup, &server), missing(&kept));
    }
}

#[test]
fn a_damaged_journal_is_never_believed() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, bool, Damage); 6] = [
        ("torn last line", true, |text| text.truncate(text.len() - 9)),
        ("foreign lines", true, |text| text.extend(b"\xff\xfe\0\n{\"part\":99999,\"check\":\"x\"}\n{}\n")),
        ("a part that was never fetched", true, |text| {
            text.extend(b"{\"part\":15,\"check\":\"00000000000000000000000000000000\"}\n");
        }),
        ("no first line", false, |text| drop(text.drain(..40))),
        ("empty", false, Vec::clear),
        ("another model's", false, |text| {
            let other = String::from_utf8_lossy(text).replace("\"bytes\":984274", "\"bytes\":984275");
            assert!(other.as_bytes() != text.as_slice());
            *text = other.into_bytes();
        }),
    ];
    for (name, some_kept, damage) in damages {
        println!("{name}");
        let setup = Setup::new();
        let server = slow_server(&setup);
        half(&setup, &server);
        let mut text = std::fs::read(setup.journal()).unwrap();
        damage(&mut text);
        std::fs::write(setup.journal(), &text).unwrap();
        let asked = finish(&setup, &server);
        assert_eq!(asked.len() < PARTS, some_kept, "{asked:?}");
    }
}

#[test]
fn a_complete_download_that_never_got_its_name_gets_it_without_a_request() {
    let setup = Setup::new();
    let server = slow_server(&setup);
    // Stopped while the whole is hashed.
    let stopped = setup.hub(&server.host).pull(ID, &mut |event| match event {
        Event::Hashing { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(HubError::Interrupted)));
    assert_eq!(setup.finished().len(), PARTS);
    assert!(finish(&setup, &server).is_empty());
    // Killed between the name and the removal of the journal.
    std::fs::write(setup.journal(), "left over").unwrap();
    std::fs::write(setup.part(), "left over").unwrap();
    setup.pull_right_keeping_leftovers(&server);
}

impl Setup {
    fn pull_right_keeping_leftovers(&self, server: &Server) {
        let before = server.asks().len();
        pull(&self.hub(&server.host)).0.unwrap();
        assert_eq!(server.asks().len(), before);
        assert!(std::fs::read(self.path()).unwrap() == *self.file);
    }
}

#[cfg(unix)]
#[test]
fn links_in_the_place_of_the_unfinished_file_are_not_followed() {
    use std::os::unix::fs::symlink;
    let setup = Setup::new();
    let server = slow_server(&setup);
    std::fs::create_dir_all(setup.folder()).unwrap();
    let precious = setup.dir.path().join("precious");
    std::fs::write(&precious, "mine").unwrap();
    symlink(&precious, setup.part()).unwrap();
    assert!(matches!(setup.pull_wrong(&server), HubError::NotPlain(_)));
    assert_eq!(std::fs::read(&precious).unwrap(), b"mine");
    std::fs::remove_file(setup.part()).unwrap();
    // A folder of models that is a link is the user's own arrangement.
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::remove_dir_all(setup.folder()).unwrap();
    symlink(elsewhere.path(), setup.folder()).unwrap();
    setup.pull_right(&server);
}

/// Not a test of its own: the process that the next test kills.
#[test]
fn the_one_that_is_killed() {
    let Ok(job) = std::env::var(KILLED) else { return };
    let (host, folder) = job.split_once('|').unwrap();
    let hub = Hub::with(ladder(&noise(1)), PathBuf::from(folder), false, Some(host), quick()).unwrap();
    pull(&hub).0.unwrap();
}

/// A download in a process of its own.
fn in_a_process(setup: &Setup, server: &Server) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hub::tests::resume::the_one_that_is_killed"])
        .env(KILLED, format!("{}|{}", server.host, setup.dir.path().display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_killed_process_costs_no_finished_part() {
    let setup = Setup::new();
    let server = slow_server(&setup);
    let mut finished = BTreeSet::new();
    // Killed twice, at two stages.
    for stage in [3, 9] {
        let mut child = in_a_process(&setup, &server);
        let deadline = Instant::now() + Duration::from_secs(60);
        while setup.finished().len() < stage {
            assert!(Instant::now() < deadline, "no progress: {:?}", setup.finished());
            assert!(child.try_wait().unwrap().is_none(), "ended before it was killed");
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!setup.path().exists());
        let again: Vec<usize> = parts_asked(&server.asks()).into_iter().filter(|part| finished.contains(part)).collect();
        assert_eq!(again, [0; 0], "finished parts were fetched again");
        finished = setup.finished();
        let file = setup.file.clone();
        server.then(move |ask| Answer { pace: Duration::from_millis(10), ..honest(ask, &file, ETAG) });
    }
    assert_eq!(finish(&setup, &server), missing(&finished));
}

#[test]
fn two_processes_at_once_fetch_once() {
    let setup = Setup::new();
    let server = slow_server(&setup);
    let mut children = [in_a_process(&setup, &server), in_a_process(&setup, &server)];
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(server.sent(), SIZE as u64);
    assert!(std::fs::read(setup.path()).unwrap() == *setup.file);
}
