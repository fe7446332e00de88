//! What the rest of the program sees: ids, paths, provenance, lists, and the promise of `--offline`.

use super::server::{Server, honest};
use super::*;
use crate::hub::{Cached, Provenance};

fn offline(setup: &Setup, server: &Server) -> Hub {
    Hub::with(ladder(&setup.file), setup.dir.path().to_owned(), true, Some(&server.host), quick()).unwrap()
}

fn resolve(hub: &Hub, name: &str) -> Result<LocalModel, HubError> {
    hub.resolve(name, &mut |_| ControlFlow::Continue(()))
}

fn good_server(setup: &Setup) -> Server {
    let file = setup.file.clone();
    Server::start(move |ask| honest(ask, &file, ETAG))
}

#[test]
fn offline_never_touches_the_network() {
    let setup = Setup::new();
    let server = good_server(&setup);
    let error = resolve(&offline(&setup, &server), ID).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("semif pull test-model") && message.contains("984274 bytes"), "{message}");
    assert!(message.contains(&setup.path().display().to_string()), "{message}");
    assert_eq!(error.exit_code(), 3);
    // A file put there by hand is taken once its bytes are known to be right.
    std::fs::create_dir_all(setup.folder()).unwrap();
    std::fs::write(setup.path(), &*setup.file).unwrap();
    resolve(&offline(&setup, &server), ID).unwrap();
    // Any other file is not.
    for (bytes, why) in [(noise(5).to_vec(), "SHA-256"), (b"short".to_vec(), "5 bytes in place of")] {
        std::fs::write(setup.path(), bytes).unwrap();
        let message = resolve(&offline(&setup, &server), ID).unwrap_err().to_string();
        assert!(message.contains(why) && message.contains("semif pull test-model"), "{message}");
    }
    assert_eq!(server.asks().len(), 0);
    // With a network it is replaced.
    let events = setup.pull_right(&server);
    assert!(matches!(&events[0], Event::Replacing { why } if why.contains("5 bytes")), "{events:?}");
}

#[test]
fn an_id_is_fetched_where_it_is_not_here_and_a_path_is_used_as_it_is() {
    let setup = Setup::new();
    let server = good_server(&setup);
    let model = resolve(&setup.hub(&server.host), "TEST-MODEL").unwrap();
    let expected = Provenance {
        source: "someone/Test-GGUF".to_owned(),
        revision: Some("0123456789012345678901234567890123456789".to_owned()),
        file: "test.gguf".to_owned(),
        bytes: SIZE as u64,
        sha256: sha256(&setup.file),
    };
    assert_eq!((model.path, &model.provenance), (setup.path(), &expected));
    assert_eq!(model.entry.unwrap(), setup.entry());
    // A copy under another name is still that model; another file is just a file.
    let copy = setup.dir.path().join("copy.gguf");
    std::fs::copy(setup.path(), &copy).unwrap();
    let model = resolve(&offline(&setup, &server), copy.to_str().unwrap()).unwrap();
    assert_eq!(model.provenance, Provenance { file: "copy.gguf".to_owned(), ..expected });
    std::fs::write(&copy, b"abc").unwrap();
    let model = resolve(&offline(&setup, &server), copy.to_str().unwrap()).unwrap();
    assert_eq!((model.provenance.source.as_str(), model.provenance.revision, model.entry), ("local file", None, None));
    assert_eq!((model.provenance.bytes, model.provenance.sha256), (3, sha256(b"abc")));
}

#[test]
fn what_is_neither_an_id_nor_a_file() {
    let setup = Setup::new();
    let server = good_server(&setup);
    let hub = setup.hub(&server.host);
    let error = resolve(&hub, "qwen9").unwrap_err();
    assert!(error.to_string().contains("the models are test-model"), "{error}");
    assert_eq!(error.exit_code(), 2);
    let error = resolve(&hub, "./none.gguf").unwrap_err();
    assert!(error.to_string().contains("no such file"), "{error}");
    let error = resolve(&hub, setup.dir.path().to_str().unwrap()).unwrap_err();
    assert!(error.to_string().contains("is a folder"), "{error}");
    assert!(matches!(pull_id(&hub, "none.gguf"), Err(HubError::UnknownModel { .. })), "pull takes ids only");
    assert_eq!(server.asks().len(), 0);
}

fn pull_id(hub: &Hub, id: &str) -> Result<LocalModel, HubError> {
    hub.pull(id, &mut |_| ControlFlow::Continue(()))
}

#[test]
fn a_split_model_has_one_provenance() {
    let setup = Setup::new();
    let server = good_server(&setup);
    let part = |n: u32| setup.dir.path().join(format!("m-{n:05}-of-00002.gguf"));
    let (left, right) = setup.file.split_at(SIZE / 3);
    std::fs::write(part(1), left).unwrap();
    std::fs::write(part(2), right).unwrap();
    let model = resolve(&offline(&setup, &server), part(2).to_str().unwrap()).unwrap();
    assert_eq!((model.provenance.bytes, model.provenance.sha256), (SIZE as u64, sha256(&setup.file)));
    assert_eq!(model.provenance.file, "m-00001-of-00002.gguf");
}

#[test]
fn the_list_says_what_is_here() {
    let setup = Setup::new();
    let server = good_server(&setup);
    let cached = || offline(&setup, &server).list().remove(0).cached;
    assert_eq!(cached(), Cached::Absent);
    let stopped = setup.hub_with(&server.host, PullOptions { disk: 5 * PART as u64, connections: 1, ..quick() });
    pull(&stopped).0.unwrap_err();
    assert_eq!(cached(), Cached::Partial { bytes: 5 * PART as u64 });
    setup.pull_right(&server);
    assert_eq!(cached(), Cached::Present { verified: true });
    std::fs::write(setup.path(), &*noise(4)).unwrap();
    assert_eq!(cached(), Cached::Present { verified: false });
    std::fs::write(setup.path(), b"abc").unwrap();
    assert_eq!(cached(), Cached::Wrong { bytes: 3 });
    let json = serde_json::to_value(offline(&setup, &server).list()).unwrap();
    assert_eq!((&json[0]["id"], &json[0]["cached"]["state"]), (&"test-model".into(), &"wrong".into()));
}
