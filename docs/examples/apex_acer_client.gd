class_name ApexAcerClient
extends RefCounted
## A client of apex_acer in GDScript for Godot 4: some agents on one connection. It speaks version 2
## of docs/remote.md's protocol in JSON, and reconnects by itself.
##
## [codeblock]
## var client := ApexAcerClient.new(url, token, {"shape": [4], "dtype": "float32"}, {"n": 2}, 16)
## var actions: Array = await client.steps(kinds, observations, rewards)
## if client.failure:
##     print(client.message)
## [/codeblock]
## Call [method steps] from a loop with [code]await get_tree().physics_frame[/code] rather than from
## [method Node._physics_process], which Godot calls again while the call before still waits. If the
## learner takes longer than [member block_ms], the game goes on meanwhile, unless it is paused.

## Why [method steps] returned no actions.
enum Failure {
	NONE,
	REFUSED,  ## The server refused a message, or cannot be reached.
	EPISODE_LOST,  ## Connection broken for too long: all episodes are over, each agent begins another.
	ENDED,  ## The server has ended, for example because its run has.
}

const OPENING_S := 10.0  # for a connection, and for the server's welcome
const ANSWER_S := 60.0  # without one, the client connects again
const CLOSING_S := 5.0
const FIRST_PAUSE_S := 0.1
const LONGEST_PAUSE_S := 2.0
const LEAST_BYTES := 1 << 16  # of the longest message that the server takes,
const BYTES_PER_NUMBER := 32  # and so many more for each number
const GOING_AWAY := 1001  # WebSocket's codes
const REFUSALS: Array[int] = [1002, 1008, 1009]

## Of the newest [method steps].
var failure := Failure.NONE
## What is wrong, in one line.
var message := ""
## Seconds to try to connect, at the start and whenever the connection breaks.
var patience_s := 60.0
## Milliseconds for which an answer may hold up the frame; one that takes longer costs a frame more.
var block_ms := 0 if OS.has_feature("web") else 5

var _url: String
var _hello: Dictionary
var _most_bytes := LEAST_BYTES
var _session := ""
var _sequence := -1  # of the newest message
var _server_has := -1
var _asking := false
var _pause_s := FIRST_PAUSE_S
var _why := ""  # the last connection broke
var _socket: WebSocketPeer = null
var _tree := Engine.get_main_loop() as SceneTree


## The client connects with its first steps.[br]
## [param observation]: shape and NumPy's name of the type, or a dictionary of these for parts.[br]
## [param action]: [code]{"n": 2}[/code], [code]{"nvec": [3, 2]}[/code] for several choices, or
## [code]{"low": [-2.0], "high": [2.0]}[/code] for floats.[br]
## [param logged_name]: at most 40 characters, under which the run logs what the client did.[br]
## [param train]: whether to be learned from.
func _init(
	url: String,
	token: String,
	observation: Dictionary,
	action: Dictionary,
	agents := 1,
	logged_name := "",
	train := true
) -> void:
	_url = url
	_hello = {"type": "hello", "version": 2, "token": token, "observation": observation}
	_hello.merge({"action": action, "agents": agents})
	if not train:
		_hello["train"] = false
	if logged_name:
		_hello["name"] = logged_name
	var parts := [observation] if observation.get("dtype") is String else observation.values()
	for part: Dictionary in parts:
		var product := func(numbers: int, length: int) -> int: return numbers * length
		_most_bytes += part["shape"].reduce(product, BYTES_PER_NUMBER * agents)
	_tree.process_frame.connect(_poll)


## Sends what is new of each agent; returns each one's next action: null if it asked for none, else
## a number, or an array of choices or floats in C order. If the array is empty, [member failure]
## and [member message] say why.[br]
## [param kinds]: of each agent "reset", "step", "terminated", "truncated", or "wait" if nothing is
## new.[br]
## [param observations]: an array or packed array of all agents' numbers, nested or flat, or a
## dictionary of these.[br]
## [param rewards]: of each agent; those of agents that wait or reset are ignored.
func steps(kinds: Array, observations: Variant, rewards: Variant) -> Array:
	if _asking:
		push_error("the steps before these have no answer yet; await them first")
		return []
	_asking = true
	failure = Failure.NONE
	message = ""
	_sequence += 1
	_pause_s = FIRST_PAUSE_S
	var values := {"type": "steps", "sequence": _sequence, "kinds": kinds}
	values.merge({"observations": observations, "rewards": rewards})
	var actions := []
	while failure == Failure.NONE and not actions:
		actions = await _exchange(values)
	_asking = false
	return actions


## Leaves; episodes that have not ended count as truncated.
func bye() -> void:
	if _socket:
		_send({"type": "bye", "sequence": _sequence + 1})
		await _until(_is.bind(WebSocketPeer.STATE_CLOSED), CLOSING_S)
	_drop("")


## Returns no actions if the connection broke, or if something failed.
func _exchange(values: Dictionary) -> Array:
	if not _socket:
		await _come_back(values["kinds"].count("reset") == values["kinds"].size())
	if failure:
		return []
	if _server_has < _sequence:
		values["sequence"] = _sequence  # a new session may have begun
		_send(values)
	_server_has = _sequence
	var answer := await _hear(ANSWER_S)
	while answer and answer.get("sequence") != _sequence:  # from before the connection broke
		answer = await _hear(ANSWER_S)
	if not answer and not failure:
		await _pause()
	return answer.get("actions", [])


## Connects again. If the session is over, the next message must begin all episodes.
func _come_back(begins: bool) -> void:
	var before := _session
	await _join()
	if failure or _session == before:
		return
	_sequence = 0
	if before and not begins:
		_sequence = -1
		failure = Failure.EPISODE_LOST
		message = "the connection was broken for too long; begin new episodes"


func _join() -> void:
	var ends_at := Time.get_ticks_msec() + 1000 * patience_s
	while true:
		var welcome := await _try_to_join()
		if failure:
			return
		if welcome:
			_session = welcome["session"]
			_server_has = int(welcome["sequence"])
			return
		if Time.get_ticks_msec() + 1000 * _pause_s > ends_at:
			_fail(Failure.REFUSED, "%s: %s" % [_url, _why])
			return
		await _pause()


## Waits before the next try: twice as long as before the one before, until a message is answered.
func _pause() -> void:
	if _pause_s == 2 * FIRST_PAUSE_S:  # the first try may just have come too early
		push_warning("%s: %s; trying again for %d s" % [_url, _why, patience_s])
	# clients that were cut off together come back apart
	var share := 0.5 + Time.get_ticks_usec() % 1000 / 2000.0
	await _tree.create_timer(share * _pause_s, true, false, true).timeout
	_pause_s = minf(2 * _pause_s, LONGEST_PAUSE_S)


## Returns the server's welcome; empty if there is none.
func _try_to_join() -> Dictionary:
	_socket = WebSocketPeer.new()
	_socket.outbound_buffer_size = _most_bytes
	_socket.inbound_buffer_size = _most_bytes
	if _socket.connect_to_url(_url) != OK:
		_fail(Failure.REFUSED, "%s: cannot connect; require ws://… or wss://…" % _url)
		return {}
	await _until(func() -> bool: return not _is(WebSocketPeer.STATE_CONNECTING), OPENING_S)
	if not _is(WebSocketPeer.STATE_OPEN):
		_drop("cannot connect")
		return {}
	_socket.set_no_delay(true)
	if _session:
		_hello["session"] = _session
	_send(_hello)
	return await _hear(OPENING_S)


func _send(values: Dictionary) -> void:
	_socket.send_text(JSON.stringify(values, "", false))


## Returns the server's next message; empty if the connection broke, or the server refused or ended.
func _hear(within_s: float) -> Dictionary:
	var closed := WebSocketPeer.STATE_CLOSED
	var has_news := func() -> bool: return _socket.get_available_packet_count() > 0 or _is(closed)
	if not await _until(has_news, within_s):
		_drop("nothing came for %d s" % within_s)
		return {}
	var values: Variant = _closing()
	if _socket.get_available_packet_count() > 0:
		values = JSON.parse_string(_socket.get_packet().get_string_from_utf8())
	if not values is Dictionary:
		values = {"type": "error", "message": "the server's message is no JSON map", "retry": false}
	if values["type"] == "bye":
		_fail(Failure.ENDED, values["message"])
	elif values["type"] == "error" and values["retry"]:
		_drop(values["message"])
	elif values["type"] == "error":
		_fail(Failure.REFUSED, values["message"])
	return values if _socket else {}


## What a closed connection says. Godot drops a message that comes together with the close (its
## issue 107442), so the close's code and reason stand for it.
func _closing() -> Dictionary:
	var code := _socket.get_close_code()
	var reason := _socket.get_close_reason()
	if code == GOING_AWAY:
		return {"type": "bye", "message": reason if reason else "the run has ended"}
	if code in REFUSALS:
		var line := reason if reason else "the server refused a message"
		return {"type": "error", "message": line, "retry": false}
	var why := reason if reason else "the connection broke (code %d)" % code
	return {"type": "error", "message": why, "retry": true}


func _fail(kind: Failure, line: String) -> void:
	failure = kind
	message = line
	_drop(line)


func _drop(why: String) -> void:
	_why = why
	_socket = null


## Waits until [param holds], but no longer than that; returns whether it holds.
func _until(holds: Callable, within_s: float) -> bool:
	var began := Time.get_ticks_msec()
	_poll()
	while not holds.call():
		var passed := Time.get_ticks_msec() - began
		if passed > 1000 * within_s:
			return false
		if passed < block_ms:
			OS.delay_usec(100)
		else:
			await _tree.process_frame
		_poll()
	return true


## Called in every frame, so that pings are answered whatever the game does.
func _poll() -> void:
	if _socket:
		_socket.poll()


func _is(state: WebSocketPeer.State) -> bool:
	return _socket.get_ready_state() == state
