// Says so when the page cannot start. Old JavaScript on purpose: it must run where nothing else does.
(function () {
  'use strict';
  function say(why) {
    var place = document.querySelector('#app .boot');
    if (!place) return;
    place.className = 'notice';
    place.setAttribute('role', 'alert');
    place.textContent = 'This page could not start: ' + why + ' It needs a current Chrome or Edge (113 or later), Safari 26, or Firefox 141 or later. What you typed on an earlier visit is kept.';
  }
  function reason(error) {
    return error && error.message ? error.message + '.' : 'a part of it could not be loaded.';
  }
  window.addEventListener('error', function (event) { say(reason(event.error || event)); }, true);
  window.addEventListener('unhandledrejection', function (event) { say(reason(event.reason)); });
  document.addEventListener('DOMContentLoaded', function () {
    if (typeof WebAssembly !== 'object' || !('noModule' in document.createElement('script'))) say('this browser is too old for it.');
  });
})();
