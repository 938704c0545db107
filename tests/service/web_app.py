# ruff: noqa: E501 - a script of a page
"""A small program that serves pages and a WebSocket, as a job would: run with a port and a base.

It answers with what it was asked, so that tests see what was passed on.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

SECRET = os.environ.get("WATTHERD_APP_SECRET", "")


def _told(request: Request | WebSocket) -> dict[str, object]:
    return {
        "path": request.url.path,
        "query": request.url.query,
        "headers": {name: request.headers.getlist(name) for name in request.headers},
        "knows": request.headers.get("x-wattherd-app-secret") == SECRET,
    }


async def echo(request: Request) -> Response:
    body = await request.body()
    return JSONResponse({**_told(request), "method": request.method, "length": len(body)})


async def cookies(request: Request) -> Response:
    answer = Response("set")
    answer.set_cookie("plain", "1", path="/", domain="example.org")
    answer.set_cookie("wattherd_token", "stolen")
    answer.headers["clear-site-data"] = '"cookies"'
    answer.headers["service-worker-allowed"] = "/"
    answer.headers["connection"] = "x-private"
    answer.headers["x-private"] = "1"
    answer.headers["content-security-policy"] = "default-src 'self'"
    return answer


HOSTILE = """<!doctype html><title>hostile</title><button>open</button><script>
const told = {};
const attempt = async (name, act) => {
  try { told[name] = String(await act()); } catch { told[name] = "blocked"; }
};
const framed = (url) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.onload = () => {
    try { done(frame.contentDocument.body.innerText.length > 0 ? "read" : "empty"); }
    catch { done("blocked"); }
  };
  frame.src = url;
  document.body.append(frame);
});
const spoken = (origin, path) => new Promise((done, failed) => {
  const socket = new WebSocket(origin.replace("http", "ws") + path);
  socket.onmessage = () => done("spoken");
  socket.onerror = failed;
});
const ours = new URLSearchParams(location.search).get("ours");
const away = (path) => "moved?to=" + encodeURIComponent(ours + path);
const loaded = (url) => new Promise((done, failed) => {
  const script = document.createElement("script");
  script.onload = () => done("loaded");
  script.onerror = failed;
  script.src = url;
  document.head.append(script);
});
const sent = (action, target) => {
  const form = document.createElement("form");
  Object.assign(form, {method: "POST", action, target});
  form.innerHTML = "<input name=budget value=7kW><input name=form_secret value=x>";
  document.body.append(form);
  form.submit();
};
const all = {credentials: "include"};
(async () => {
  await attempt("own", async () => (await fetch("own")).status);
  await attempt("own socket", () => spoken(location.origin, location.pathname.replace("hostile", "talk")));
  await attempt("own cookies", async () => {
    const seen = document.cookie + JSON.stringify((await (await fetch("own")).json()).headers.cookie);
    return seen.includes("wattherd") ? "leaked " + seen : "none of ours";
  });
  await attempt("fetch", async () => (await fetch(ours + "/api/v1/whoami", all)).text());
  await attempt("fetch a page", async () => (await fetch(ours + "/", all)).text());
  await attempt("fetch by a redirect", async () => (await fetch(away("/api/v1/tokens"), all)).text());
  await attempt("fetch a page by a redirect", async () => (await fetch(away("/"), all)).text());
  await attempt("post", async () => (await fetch(ours + "/api/v1/tokens",
    {...all, method: "POST", body: '{"user": "mallory", "role": "admin"}'})).status);
  await attempt("post by a redirect", async () => (await fetch(away("/api/v1/tokens"),
    {...all, method: "POST", body: '{"user": "mallory", "role": "admin"}'})).status);
  await attempt("put", async () => (await fetch(ours + "/api/v1/power",
    {...all, method: "PUT", body: '{"budget": "7kW"}', headers: {"content-type": "application/json"}})).status);
  await attempt("beacon", async () => {
    if (!navigator.sendBeacon(ours + "/budget", "budget=7kW")) throw 0;
    return "sent";
  });
  await attempt("frame", () => framed(ours + "/"));
  await attempt("frame the api", () => framed(ours + "/api/v1/whoami"));
  await attempt("frame by a redirect", () => framed(away("/")));
  await attempt("script", () => loaded(ours + "/api/v1/whoami"));
  await attempt("socket", () => spoken(ours, location.pathname.replace("hostile", "talk")));
  await attempt("worker", () => navigator.serviceWorker.register("own", {scope: "/"}));
  await attempt("worker from ours", () => navigator.serviceWorker.register(ours + "/static/htmx.min.js"));
  for (const action of [ours + "/budget", away("/budget")]) {
    const frame = document.createElement("iframe");
    frame.name = "f" + Math.random();
    document.body.append(frame);
    sent(action, frame.name);
  }
  await new Promise((done) => setTimeout(done, 1000));
  document.title = JSON.stringify(told);
})();
document.querySelector("button").onclick = () => {
  const opened = window.open(ours + "/api/v1/whoami");
  setTimeout(() => {
    let read = "blocked";
    try { read = opened.closed ? "closed" : opened.document.body.innerText; } catch {}
    document.title = "opened: " + read;
  }, 3000);
};
</script>"""


async def hostile(request: Request) -> Response:
    return HTMLResponse(HOSTILE)


async def moved(request: Request) -> Response:
    return RedirectResponse(request.query_params["to"])


async def endless(request: Request) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        try:
            number = 0
            while True:
                yield b"line %d\n" % number
                number += 1
                await asyncio.sleep(0.05)
        finally:
            print("left", flush=True)

    return StreamingResponse(lines())


async def talk(socket: WebSocket) -> None:
    chosen = socket.scope["subprotocols"]
    await socket.accept(subprotocol=chosen[-1] if chosen else None)
    await socket.send_text(json.dumps(_told(socket)))
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            print(f"closed {message['code']}", flush=True)
            return
        if message.get("text") == "end":
            await socket.close(4001, "as asked")
        elif message.get("text") is not None:
            await socket.send_text(message["text"] * 2)
        else:
            await socket.send_bytes(message["bytes"][::-1])


app = Starlette(
    routes=[
        Route("/cookies", cookies),
        Route("/moved", moved, methods=["GET", "POST"]),
        Route("/endless", endless),
        Route("/hostile", hostile),
        WebSocketRoute("/talk", talk),
        WebSocketRoute("/jobs/{job}/app/talk", talk),
        Route("/{path:path}", echo, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
    ]
)

if __name__ == "__main__":
    print("secret:", SECRET, flush=True)
    uvicorn.run(app, port=int(os.environ["WATTHERD_APP_PORT"]), log_level="warning")
