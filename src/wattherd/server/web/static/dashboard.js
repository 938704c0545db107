/* Says when what is shown is old, keeps logs at their end, and asks for less while nobody looks. */
"use strict";
const stale = document.getElementById("stale");
let heard = Date.now();
document.addEventListener("htmx:after:request", (event) => {
  const status = event.detail?.ctx?.response?.status ?? 0;
  if (status >= 200 && status < 300) { heard = Date.now(); if (stale) stale.hidden = true; }
});
document.addEventListener("htmx:before:request", (event) => {
  if (document.hidden && event.target?.id === "live") event.preventDefault();
});
const toEnd = () => document.querySelectorAll("pre.log[data-follow]").forEach((log) => { log.scrollTop = log.scrollHeight; });
let follow = true;
document.addEventListener("scroll", (event) => {
  const log = event.target;
  if (log.matches?.("pre.log")) follow = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
}, true);
document.addEventListener("htmx:after:swap", () => { if (follow) toEnd(); });
toEnd();
if (document.querySelector("#live[data-hx-get]")) {
  setInterval(() => { if (!document.hidden && Date.now() - heard > 6000 && stale) stale.hidden = false; }, 1000);
  document.addEventListener("visibilitychange", () => { heard = Date.now(); });
}
