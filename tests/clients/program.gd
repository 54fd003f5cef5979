extends SceneTree
## `page` and `play` as in program.cpp.

const Client := preload("res://apex_acer_client.gd")


func _initialize() -> void:
	var words := OS.get_cmdline_user_args()
	var url := "ws://127.0.0.1:" + words[1]
	var client: Client
	if words[0] == "page":
		client = Client.new(url, words[2], {"shape": [2], "dtype": "float32"}, {"n": 3}, 2)
		show(await client.steps(["reset", "wait"], PackedFloat32Array([0.5, -1, 0, 0]), [0, 0]))
		show(await client.steps(["terminated", "reset"], [[0, 0.5], [0.5, -1]], [1.5, 0]))
	else:
		client = Client.new(url, words[2], {"shape": [4], "dtype": "float32"}, {"n": 2}, 3)
		await play(client, int(words[3]))
	await client.bye()
	if client.failure == Client.Failure.ENDED:
		print("ended: ", client.message)
	elif client.failure:
		print("refused: ", client.message)
	quit()


func play(client: Client, rounds: int) -> void:
	var num := 0
	while num < rounds:
		var observations := []
		for agent in 3:
			observations.append([num + agent, agent, 0, 0])
		var kind := "reset" if num % 10 == 0 else "step" if num % 10 < 9 else "truncated"
		var actions: Array = await client.steps([kind, kind, kind], observations, [1, 2, 3])
		if client.failure == Client.Failure.EPISODE_LOST:
			print("lost: ", client.message)
			num -= num % 10
		elif client.failure:
			return
		else:
			show(actions)
			num += 1


func show(actions: Array) -> void:
	var line := ""
	for action: Variant in actions:
		line += "[]" if action == null else "[%d,]" % action
	print(line)
